"""Measures how long garbage collections stop this process, for each generation of the collector."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

_GENERATIONS = 3


class GcPauses:
    """Measures the pauses of the collector until it is itself collected."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._started_ns = 0
        self._spent_ns = [0] * _GENERATIONS
        self._pauses = [0] * _GENERATIONS
        # The collector's list of callbacks must not keep this object alive.
        listener = weakref.WeakMethod(self.heard)

        def hear(phase: str, info: dict[str, Any]) -> None:
            alive = listener()
            if alive is not None:
                alive(phase, info)

        gc.callbacks.append(hear)
        weakref.finalize(self, gc.callbacks.remove, hear)

    def heard(self, phase: str, info: dict[str, Any]) -> None:
        """Record the start or the end of a pause; called by the collector."""
        if phase == "start":
            self._started_ns = self._clock_ns()
        else:
            self._spent_ns[info["generation"]] += self._clock_ns() - self._started_ns
            self._pauses[info["generation"]] += 1

    def take_mean_ms(self) -> float:
        """Return the mean pause in ms of the generation with the longest mean since the last call; reset all counts."""
        means = [spent / pauses / 1e6 for spent, pauses in zip(self._spent_ns, self._pauses, strict=True) if pauses]
        self._spent_ns, self._pauses = [0] * _GENERATIONS, [0] * _GENERATIONS
        return max(means, default=0.0)
