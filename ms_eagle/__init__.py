"""EAGLE-3 tree speculative decoding, native to MindSpore."""

__version__ = "0.1.0"
