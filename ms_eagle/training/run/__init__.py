"""One run of the trainer: its folder, checkpoints, figures and what it publishes."""
