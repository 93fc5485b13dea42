"""Reference mode: the cycle stage by stage, every invariant checked and recorded."""
