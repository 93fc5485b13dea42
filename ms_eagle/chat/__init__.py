"""Conversations on a terminal."""
