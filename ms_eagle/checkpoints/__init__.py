"""Where models come from, and how their files are read."""
