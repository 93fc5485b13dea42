"""Decoders over static caches."""
