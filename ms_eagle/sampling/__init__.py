"""The choice of a token: options, uniforms, and arithmetic that is the same everywhere."""
