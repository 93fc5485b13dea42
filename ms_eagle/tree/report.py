"""The report of a cycle: what the host reads back from the device, int32 ``[B, 2 + T]``."""

COUNT, FAULT, TOKENS = 0, 1, 2
"""Columns: tokens emitted, fault code, and the first of up to T tokens."""

HEALTHY, TEACHER_NOT_FINITE, DRAFTER_NOT_FINITE = 0, 1, 2
"""Fault codes, by priority; 0 is none."""
