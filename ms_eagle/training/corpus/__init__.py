"""The teacher's own answers, as training data."""
