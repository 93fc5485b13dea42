"""A recorded run as one HTML page."""
