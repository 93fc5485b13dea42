"""What pages for people share."""
