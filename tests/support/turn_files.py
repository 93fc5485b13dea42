"""A run's turns as they were written, without their times."""

from ms_eagle.benchmark import turn_log

TIMES = ("teacher", "speculative", "speedup", "speedup_end_to_end")


def timeless(out):
    """Everything of the turns but times."""
    return [
        {key: value for key, value in record.items() if key not in TIMES}
        for record in turn_log.read(out / "turns.jsonl")
    ]
