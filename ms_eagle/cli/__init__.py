"""What the command lines in ``tools/`` share."""
