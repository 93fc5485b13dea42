"""What any program needs of its machine: files, locks, progress, streams, device settings."""
