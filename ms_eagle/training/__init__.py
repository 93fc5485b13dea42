"""Training EAGLE-3 heads: from a corpus of the teacher's own answers to a published checkpoint."""
