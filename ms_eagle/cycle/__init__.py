"""The whole cycle and its graphs."""
