"""How long garbage collections stop this process: the mean pause of the worst generation since they were last taken."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

_GENERATIONS = 3


class GcPauses:
    """Listens to the collector until it is garbage itself.

    Args:
        clock_ns: monotonic nanoseconds.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._started_ns = 0
        self._spent_ns = [0] * _GENERATIONS
        self._pauses = [0] * _GENERATIONS
        # The collector's list must not keep this alive.
        listener = weakref.WeakMethod(self.heard)

        def hear(phase: str, info: dict[str, Any]) -> None:
            alive = listener()
            if alive is not None:
                alive(phase, info)

        gc.callbacks.append(hear)
        weakref.finalize(self, gc.callbacks.remove, hear)

    def heard(self, phase: str, info: dict[str, Any]) -> None:
        """What the collector calls: a pause starts or stops."""
        if phase == "start":
            self._started_ns = self._clock_ns()
        else:
            self._spent_ns[info["generation"]] += self._clock_ns() - self._started_ns
            self._pauses[info["generation"]] += 1

    def take_mean_ms(self) -> float:
        """The mean pause of the generation whose pauses were the longest, in ms; and begin anew."""
        means = [spent / pauses / 1e6 for spent, pauses in zip(self._spent_ns, self._pauses, strict=True) if pauses]
        self._spent_ns, self._pauses = [0] * _GENERATIONS, [0] * _GENERATIONS
        return max(means, default=0.0)
