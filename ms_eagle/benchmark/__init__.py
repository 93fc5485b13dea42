"""Measures speculation against the teacher alone: the tables of the EAGLE-Pangu paper (arXiv 2603.08088).

``tools/benchmark.py`` is the command line. A run is a `plan` of turns, answered by a pair of `engines`, kept
turn by turn in a `turn_log`; `figures` sums them up, `page` draws them.
"""
