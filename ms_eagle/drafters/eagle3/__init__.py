"""EAGLE-3 heads (arXiv 2503.01840): their published layouts, and drafting with them."""
