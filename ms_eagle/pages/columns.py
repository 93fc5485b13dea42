"""Text in aligned columns, for terminals."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows as lines, two spaces between columns; a row with fewer cells ends in a note as long as it likes.

    Args:
        rows: cells.
        left: how many columns begin at their left edge; the others, of numbers, end at their right one.
    """
    count = max(map(len, rows))
    cells = [row if len(row) == count else row[:-1] for row in rows]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(count)]
    lines = []
    for row, columns in zip(rows, cells, strict=True):
        padded = [
            cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(columns)
        ]
        lines.append("  ".join([*padded, *row[len(columns) :]]).rstrip())
    return lines
