"""Formats rows as a text table for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_WIDEST = 60


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Format columns under their names, as wide as their widest cell. Long cells are cut.

    >>> print(text_table([{"user": "ann", "n": 1}, {"user": None, "n": {"a": 20}}], ["user", "n"]))
    user  n
    ----  --------
    ann   1
    null  {"a":20}
    """
    lines = [list(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
