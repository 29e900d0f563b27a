"""The windows of a plan: each length once, with the features that read it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from millpond.features.compiled_cells import CompiledFeature
from millpond.features.windows import parse_window


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """One window length, and the features that read it, by their positions among all features."""

    window_ms: int | None
    features: tuple[tuple[int, CompiledFeature], ...]


def planned_windows(features: Sequence[CompiledFeature]) -> tuple[PlannedWindow, ...]:
    """Return the windows of all features, shortest first and all time last, each with the features that read it."""
    placed = [
        (math.inf if feature.window is None else parse_window(feature.window), position, feature)
        for position, feature in enumerate(features)
    ]
    by_length = groupby(sorted(placed, key=itemgetter(0, 1)), key=itemgetter(0))
    return tuple(
        PlannedWindow(
            None if length == math.inf else int(length),
            tuple((position, feature) for _, position, feature in group),
        )
        for length, group in by_length
    )
