"""The teacher's hidden states over a corpus, kept on disk."""
