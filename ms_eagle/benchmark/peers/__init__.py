"""Other engines on the same machine, each in a process of its own."""
