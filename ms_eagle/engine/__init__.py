"""The host loop, its requests and its answers."""
