"""Compute kernels behind one attention contract; imported as ``ms_eagle.kernels``."""
