"""Models in one file, as llama.cpp has them."""
