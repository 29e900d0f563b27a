"""Set-ups of FLIP-50's benchmark that take turns with RocksDB, each in a process of its own.

A machine's speed drifts by a fifth within minutes, which is as much as there is to measure. So two processes of RocksDB
stay, one with everything in its cache and one with less memory, and each works off a round of records before each round
of another set-up's; what counts is the median of the ratios, and their spread stands beside it.

A process stands still while it is not its turn: what it has threads do in the background, as RocksDB's compaction, is
done in its own time and in nobody else's. Its clock stands still too (`TurnClock`): what is due once a minute, such as
the comparison of a spill file's pages with their checksums, is due once a minute of its own time.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Self

from millpond.state.spillable.process_memory import process_memory_bytes

BASE = "rocksdb_all_memory"
SAME_MEMORY = "rocksdb_same_memory"
BASES = (BASE, SAME_MEMORY)
TURNS = 5
WARM_UP = 2
"""Rounds of a set-up that do not count."""
WARM_UP_ROCKSDB = 13
"""Of RocksDB, whose rounds are shorter: it gets slower until its write buffers were compacted a few times."""


class Round(NamedTuple):
    """A round of records: how many a second they were, and what share of the key groups was on disk then."""

    rows_per_second: float
    disk_share: float = 0.0


SetUp = Callable[[float], AbstractContextManager[Callable[[int], Round]]]
"""Opened at a scale, gives what works off the records of a round, by its number."""


class Turn(NamedTuple):
    """What a set-up says of a round; and what memory its process has of its own."""

    rows_per_second: float
    disk_share: float
    own_bytes: int


class TurnClock:
    """A monotonic clock in ns that stands still while it is not the turn of this process.

    Args:
        clock_ns: the clock that goes on.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._stood_ns = 0

    def __call__(self) -> int:
        """Return the ns that the clock has run."""
        return self._clock_ns() - self._stood_ns

    @contextmanager
    def stands_still(self) -> Iterator[None]:
        """Stop the clock for the duration of a block."""
        since_ns = self._clock_ns()
        yield
        self._stood_ns += self._clock_ns() - since_ns


CLOCK = TurnClock()
"""The clock of this process."""


def serve(set_up: SetUp, scale: float) -> None:
    """Work off a round for each line of the input, and say how it went."""
    with set_up(scale) as work_off:
        print("ready", flush=True)
        number = 0
        while _has_a_turn():
            print(json.dumps(Turn(*work_off(number), process_memory_bytes().own)), flush=True)
            number += 1


def _has_a_turn() -> bool:
    """Wait for the next turn. Return whether there is one."""
    with CLOCK.stands_still():
        return bool(sys.stdin.readline())


class Served(AbstractContextManager["Served"]):
    """A set-up in a process of its own, once it has run for a while."""

    def __init__(self, part: str, scale: float) -> None:
        self.rounds: list[Turn] = []
        self._part = part
        command = [sys.executable, "-m", "benchmarks.flip50", "--serve", part, "--scale", str(scale)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()
        for _ in range(WARM_UP_ROCKSDB if part.startswith("rocksdb") else WARM_UP):
            self.round()
        self.rounds.clear()

    def round(self) -> Turn:
        """Have it work off a round."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        turn = Turn(*json.loads(self._answer()))
        self._process.send_signal(signal.SIGSTOP)
        self.rounds.append(turn)
        said = f"{self._part}: {turn.rows_per_second:,.0f} records/s, {turn.disk_share:.0%} on disk"
        print(said, file=sys.stderr, flush=True)
        return turn

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._part} ended with {self._process.wait()}")
        return line

    def __exit__(self, *_: object) -> None:
        """End it: what it counted is checked there."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        if self._process.wait():
            raise RuntimeError(f"{self._part} ended with {self._process.returncode}")


class InTurn:
    """Measures set-ups against RocksDB, whose process is started for the first one of them."""

    def __init__(self, scale: float, stack: ExitStack) -> None:
        self._scale = scale
        self._stack = stack
        self._bases: dict[str, Served] = {}

    @classmethod
    @contextmanager
    def at(cls, scale: float) -> Iterator[Self]:
        """One that ends its processes."""
        with ExitStack() as stack:
            yield cls(scale, stack)

    def measure(self, part: str) -> dict[str, Any]:
        """Medians of some turns, by RocksDB's of the same rounds; of RocksDB itself those of all its rounds so far."""
        for base in BASES:
            if base not in self._bases:
                self._bases[base] = self._stack.enter_context(Served(base, self._scale))
        if part in BASES:
            turns = self._bases[part].rounds or [self._bases[part].round() for _ in range(TURNS)]
            return _figures(turns, {})
        ratios: dict[str, list[float]] = {base: [] for base in BASES}
        with Served(part, self._scale) as set_up:
            for _ in range(TURNS):
                of_bases = {base: served.round() for base, served in self._bases.items()}
                ours = set_up.round()
                for base, theirs in of_bases.items():
                    ratios[base].append(ours.rows_per_second / theirs.rows_per_second)
            return _figures(set_up.rounds, ratios)


def _figures(turns: Sequence[Turn], ratios: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {
        "rows_per_second": round(statistics.median(turn.rows_per_second for turn in turns)),
        "spread": [round(each(turn.rows_per_second for turn in turns)) for each in (min, max)],
        "disk_share": round(statistics.median(turn.disk_share for turn in turns), 3),
        "ratio": {base: statistics.median(of_rounds) for base, of_rounds in ratios.items()},
        "ratio_spread": {base: [min(of_rounds), max(of_rounds)] for base, of_rounds in ratios.items()},
        "own_bytes": turns[-1].own_bytes,
    }
