"""Which part of the whole product of subjects, kinds and shapes every run tests.

A behaviour is one test function.
The whole product runs every behaviour over every subject, every kind, every shape and every parameter of its own.
The cover runs every behaviour

- over every subject, and
- within each layer (the subjects whose outermost code is the same) over every value of every other parameter.

So a fault that shows for a pair of (behaviour, subject), or for one shape or kind in one layer, is found by every run.
Which values meet in one test differs from behaviour to behaviour: over all behaviours every subject meets every shape.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any


def cover(behaviour: str, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Choose rows of one behaviour's whole product, greedily, in an order that depends on the behaviour alone.

    Args:
        behaviour: its name.
        rows: its parameters by name, `subject` among them, one mapping a test.

    Returns:
        The numbers of the chosen rows, in order.
    """
    order = list(range(len(rows)))
    random.Random(behaviour).shuffle(order)
    wanted = [_covered(row) for row in rows]
    missing = set().union(*wanted)
    chosen = []
    while missing:
        best = max(order, key=lambda number: len(wanted[number] & missing))
        missing -= wanted[best]
        chosen.append(best)
    return sorted(chosen)


def _covered(row: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """What a test covers: its subject, and each of its other values within the subject's layer."""
    subject = row["subject"]
    values = {(subject.layer, name, repr(value)) for name, value in row.items() if name != "subject"}
    return {("", "subject", subject.name), *values}
