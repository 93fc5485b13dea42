"""Fault codes in the report of a cycle, by priority; 0 is none."""

HEALTHY, TEACHER_NOT_FINITE, DRAFTER_NOT_FINITE = 0, 1, 2
