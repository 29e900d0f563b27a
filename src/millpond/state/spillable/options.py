"""The options of the heap that spills, by the names of FLIP-50's preview release, and the settings they become.

Invariant: `load_start_ratio < load_end_ratio < high_watermark_ratio`. Otherwise state that was just loaded would be
spilled again, without end.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.options import Known, duration_ms, flag, place, size_bytes

_COUNTS = ("chunk_bytes", "check_interval_ms", "gc_time_threshold_ms", "trigger_interval_ms", "spill_bytes_per_second")


@dataclass(frozen=True, slots=True)
class SpillableSettings:
    """Settings of a heap that spills.

    Attributes:
        memory_limit_bytes: memory that this process may use; if it is one of several hosts of an executor, what all of
            them may use together. None: the limit of the container or the process, else the machine's memory.
        hosts: how many processes share that memory, set by whoever starts them; 0 for one per processor of the machine.
        paths: folders for spill files, used in rotation; none for the temporary folder.
        chunk_bytes: the step by which a spill file may grow. Free space on the disk is checked before each.
        check_interval_ms: how often memory and pauses are checked by the clock.
        gc_time_threshold_ms: the mean pause of garbage collection over a check interval above which state is spilled.
        high_watermark_ratio: the share of the memory limit above which state is spilled.
        spill_size_ratio: the share of the state on the heap that one pass spills.
        load_start_ratio: state is loaded when the heap holds less than this share of the memory limit,
        load_end_ratio: up to this share.
        trigger_interval_ms: the least time between two passes. Above the hard mark it does not apply.
        cancel_checkpoint: whether checkpoints that are being written in the background are given up when a pass begins
            to spill. If not, the pass waits for them, unless memory is above the hard mark.
        spill_bytes_per_second: how fast key groups are written to disk below the hard mark. Changed cells that are
            written count, and do not wait.

    Raises:
        ValueError: a value is out of its range, or the ratios are out of order.

    >>> SpillableSettings(load_start_ratio=0.4)
    Traceback (most recent call last):
    ValueError: expected load-start.ratio < load-end.ratio < high-watermark.ratio, got 0.4, 0.3 and 0.5
    """

    memory_limit_bytes: int | None = None
    hosts: int = 1
    paths: tuple[Path, ...] = ()
    chunk_bytes: int = 512 << 20
    check_interval_ms: int = 60_000
    gc_time_threshold_ms: int = 2_000
    high_watermark_ratio: float = 0.5
    spill_size_ratio: float = 0.2
    load_start_ratio: float = 0.1
    load_end_ratio: float = 0.3
    trigger_interval_ms: int = 60_000
    cancel_checkpoint: bool = True
    spill_bytes_per_second: int = 100 << 20

    def __post_init__(self) -> None:
        for name in ("high_watermark_ratio", "spill_size_ratio", "load_start_ratio", "load_end_ratio"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"expected {name} above 0 and below 1, got {getattr(self, name)}")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} of at least 1, got {getattr(self, name)}")
        ratios = (self.load_start_ratio, self.load_end_ratio, self.high_watermark_ratio)
        if not ratios[0] < ratios[1] < ratios[2]:
            got = f"{ratios[0]}, {ratios[1]} and {ratios[2]}"
            raise ValueError(f"expected load-start.ratio < load-end.ratio < high-watermark.ratio, got {got}")

    @property
    def hard_mark_ratio(self) -> float:
        """The share of the memory limit above which spilling is not delayed: halfway from high watermark to limit."""
        return (1 + self.high_watermark_ratio) / 2


def _ratio(value: Any) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", text.lower()) or not 0 < float(text) < 1:
        raise ValueError("a ratio such as '0.2', above 0 and below 1")
    return float(text)


def _paths(value: Any) -> tuple[Path, ...]:
    given = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(Path(place(each)).absolute() for each in given)


SPILLABLE_OPTIONS: Known = {
    "state.backend.spillable.memory-limit": ("memory_limit_bytes", size_bytes(1 << 20)),
    "state.backend.spillable.paths": ("paths", _paths),
    "state.backend.spillable.chunk-size": ("chunk_bytes", size_bytes(1 << 20, 1 << 40)),
    "state.backend.spillable.heap-status.check-interval": ("check_interval_ms", duration_ms),
    "state.backend.spillable.gc-time.threshold": ("gc_time_threshold_ms", duration_ms),
    "state.backend.spillable.high-watermark.ratio": ("high_watermark_ratio", _ratio),
    "state.backend.spillable.spill-size.ratio": ("spill_size_ratio", _ratio),
    "state.backend.spillable.load-start.ratio": ("load_start_ratio", _ratio),
    "state.backend.spillable.load-end.ratio": ("load_end_ratio", _ratio),
    "state.backend.spillable.trigger-interval": ("trigger_interval_ms", duration_ms),
    "state.backend.spillable.cancel.checkpoint": ("cancel_checkpoint", flag),
    "state.backend.spillable.spill-rate": ("spill_bytes_per_second", size_bytes(1 << 20)),
}
