"""Drafting from the text itself: what followed the last tokens where they stood before."""
