"""What proposes: a file or a room for each kind."""
