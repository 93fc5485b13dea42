"""Text in columns."""

from ms_eagle.pages.columns import aligned


def test_columns_are_as_wide_as_their_widest_cell():
    rows = [("name", "ms", "ratio"), ("verify", "10.25", "1.0"), ("a", "9.5", "")]
    assert aligned(rows) == ["name       ms  ratio", "verify  10.25    1.0", "a         9.5"]
    assert aligned(rows, left=2)[1:] == ["verify  10.25    1.0", "a       9.5"]


def test_a_short_row_ends_in_a_note_that_widens_no_column():
    rows = [("peer", "t/s", "same"), ("x", "1", "2"), ("longer name", "failed: it is not installed at all")]
    assert aligned(rows) == [
        "peer         t/s  same",
        "x              1     2",
        "longer name  failed: it is not installed at all",
    ]
