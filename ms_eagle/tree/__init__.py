"""A draft tree as pure functions, in the paper's order."""
