"""Tokenizers, chat templates, streams of whole characters, prompt files."""
