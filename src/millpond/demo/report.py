"""What the demo shows: one display while it runs, one table and one picture at the end.

Beside the demo's data path; it reads measures and changes nothing. A `Measure` says what one step
(a micro-batch, a round of requests) did and how long it took. On a terminal the display is one live
line per fact; elsewhere every step is one plain line, so that a log reads well. The picture draws the
measures of the whole run, those of a process that was killed included, because they are kept with
the outputs they measure.
"""

import io
import itertools
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_UNITS = {"stream": "events", "serve": "requests in-process", "http": "requests over HTTP"}
"""What the steps of a stage are made of."""


_BAR_WIDTH = 60


class CacheCount(msgspec.Struct, frozen=True):
    """How often a cache was asked for what it had, and for what it had not."""

    hits: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Hits per request, or None if there was none.

        >>> CacheCount(3, 1).hit_rate
        0.75
        """
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    def __add__(self, other: "CacheCount") -> "CacheCount":
        return CacheCount(self.hits + other.hits, self.misses + other.misses)

    def __sub__(self, other: "CacheCount") -> "CacheCount":
        return CacheCount(self.hits - other.hits, self.misses - other.misses)


class Measure(msgspec.Struct, frozen=True):
    """One step of a stage: how long it took, what it handled, and what the caches had.

    `items` are events in the stage "stream" and requests in the stages "serve" and "http". `counts` are those
    of the fetcher: calls, gets and tiles, sent or saved.
    """

    stage: str
    seconds: float
    items: int
    caches: dict[str, CacheCount] = {}
    counts: dict[str, int] = {}


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run, in the form of `--json`.

    `hit_rate` is null for a cache that nobody asked. `fetcher` counts what the fetcher read and what its caches
    saved. `consistency` counts the logged features by how they compare with the training set.
    """

    events: int
    seconds: float
    events_per_second: float
    features_checked: int
    mismatches: int
    caches: dict[str, dict[str, float | None]]
    resumed: bool
    fetcher: dict[str, int] = {}
    consistency: dict[str, int] = {}


def total_caches(measures: Sequence[Measure]) -> dict[str, CacheCount]:
    """Every cache's count over all measures.

    >>> total_caches([Measure("stream", 1.0, 5, {"planes": CacheCount(1, 2)})] * 2)
    {'planes': CacheCount(hits=2, misses=4)}
    """
    totals: dict[str, CacheCount] = {}
    for measure in measures:
        for name, count in measure.caches.items():
            totals[name] = totals.get(name, CacheCount()) + count
    return totals


def total_counts(measures: Sequence[Measure]) -> dict[str, int]:
    """Every count of the fetcher over all measures.

    >>> total_counts([Measure("serve", 1.0, 5, counts={"batch_gets": 2})] * 2)
    {'batch_gets': 4}
    """
    totals: dict[str, int] = {}
    for measure in measures:
        for name, count in measure.counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals


def saved(counts: Mapping[str, int], done: str, spared: str) -> str:
    """How much of something a cache made needless, in words.

    >>> saved({"tiles_read": 30, "tiles_saved": 90}, "tiles_read", "tiles_saved")
    '30, and 90 saved (75 %)'
    """
    some, others = counts.get(done, 0), counts.get(spared, 0)
    share = f" ({others / (some + others):.0%})".replace("%", " %") if some + others else ""
    return f"{some:,}, and {others:,} saved{share}"


def caches_json(caches: Mapping[str, CacheCount]) -> dict[str, dict[str, float | None]]:
    """The caches as `--json` gives them.

    >>> caches_json({"planes": CacheCount(3, 1)})
    {'planes': {'hits': 3, 'misses': 1, 'hit_rate': 0.75}}
    """
    return {name: {"hits": c.hits, "misses": c.misses, "hit_rate": c.hit_rate} for name, c in caches.items()}


class Display:
    """The one progress display. A context manager; says nothing if `quiet`."""

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self.console = Console(file=out or sys.stderr, quiet=quiet, soft_wrap=True)
        self._total, self._before = 0, 0
        self._measures: list[Measure] = []
        self._stages: list[str] = []
        self._live = (
            Live(console=self.console, refresh_per_second=4) if self.console.is_terminal and not quiet else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def expect(self, total_events: int, *, before: int = 0) -> None:
        """Say how many events there are in all, and how many of them an earlier process has done."""
        self._total, self._before = total_events, before

    def stage(self, text: str) -> None:
        """Say what is being done now."""
        self._stages.append(text)
        self._show(f"[{len(self._stages)}] {text}")

    def step(self, measure: Measure) -> None:
        """Say what one step did."""
        self._measures.append(measure)
        self._show(describe(self._measures, self._total, self._before))

    def _show(self, line: str) -> None:
        if self._live is None:
            self.console.print(line, markup=False, highlight=False)
            return
        stages = [Text(f"  done  {text}", style="dim") for text in self._stages[:-1]]
        stages += [Text(f"  now   {text}", style="bold") for text in self._stages[-1:]]
        if not self._measures:
            self._live.update(Group(*stages))
            return
        streamed = sum(measure.items for measure in self._measures if measure.stage == "stream")
        facts = Table.grid(padding=(0, 0, 0, 2))
        facts.add_row(ProgressBar(total=self._total, completed=self._before + streamed, width=_BAR_WIDTH))
        facts.add_row(describe(self._measures, self._total, self._before))
        self._live.update(Group(*stages, facts))


def describe(measures: Sequence[Measure], total_events: int, before: int = 0) -> str:
    """One line on the steps so far: how many, how much, how fast, and how often the caches had it.

    `before` are events that an earlier process has done.

    >>> describe([Measure("stream", 0.5, 1000, {"planes": CacheCount(3, 1)})], 4000)
    'batch 1  1,000 of 4,000 events  2,000 events/s  hit rates: planes 75 %'
    """
    last = measures[-1]
    same = [measure for measure in measures if measure.stage == last.stage]
    done, seconds = sum(m.items for m in same), sum(m.seconds for m in same)
    rate = f"{done / seconds:,.0f}" if seconds else "-"
    if last.stage == "stream":
        text = f"batch {len(same)}  {before + done:,} of {total_events:,} events  {rate} events/s"
    else:
        text = f"round {len(same)}  {done:,} {_UNITS[last.stage]}  {rate} requests/s"
    rates = [
        f"{name} {c.hit_rate:.0%}".replace("%", " %")
        for name, c in total_caches(same).items()
        if c.hit_rate is not None
    ]
    return text + ("  hit rates: " + ", ".join(rates) if rates else "")


def summary(outcome: Outcome, facts: Mapping[str, str], console: Console) -> None:
    """Print the table at the end: the result, then `facts`, then the caches."""
    table = Table(title="Flights through the millpond", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("events", f"{outcome.events:,}")
    table.add_row("seconds", f"{outcome.seconds:,.1f}" + (" (resumed)" if outcome.resumed else ""))
    table.add_row("events/s", f"{outcome.events_per_second:,.0f}")
    for name, value in facts.items():
        table.add_row(name, value)
    table.add_section()
    for name, cache in outcome.caches.items():
        rate = "never asked" if cache["hit_rate"] is None else f"{cache['hit_rate']:.1%}".replace("%", " %")
        table.add_row(f"cache {name}", f"{cache['hits']:,} hits, {cache['misses']:,} misses, {rate}")
    table.add_section()
    table.add_row("features checked", f"{outcome.features_checked:,}")
    if outcome.consistency:
        table.add_row("logged and equal in the training set", f"{outcome.consistency.get('equal', 0):,}")
        other = {kind: count for kind, count in outcome.consistency.items() if kind != "equal" and count}
        for kind, count in other.items():
            table.add_row(f"logged and {kind.replace('_', ' ')}", f"{count:,}", style="bold red")
    table.add_row("mismatches", str(outcome.mismatches), style="green" if outcome.mismatches == 0 else "bold red")
    console.print(table)


_INK, _GRID = "#1f2933", "#d9dee3"
_COLOURS = ("#1b6ca8", "#d1603d", "#3a7d44", "#7a5195", "#b8860b", "#2a9d8f", "#8d99ae", "#c2185b")


def picture(measures: Sequence[Measure], title: str) -> bytes:
    """A PNG of throughput and hit rates over time: the stream on the left, the fetcher on the right.

    Above, each step is a bar as wide as it took; below is each cache's hit rate in that step. The rounds of
    the fetcher are drawn in-process first and then over HTTP, although each was asked both ways in turn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), layout="constrained", facecolor="white")
    axes = figure.subplots(2, 2, sharex="col", width_ratios=(3, 2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    streamed = [m for m in measures if m.stage == "stream"]
    served = [m for stage in ("serve", "http") for m in measures if m.stage == stage]
    colour_of = dict(zip(total_caches(measures), _COLOURS, strict=False))
    for column, (steps, name) in enumerate(((streamed, "Stream"), (served, "Fetcher"))):
        _throughput(axes[0, column], steps)
        _hit_rates(axes[1, column], steps, colour_of)
        axes[0, column].set_title(name, loc="left", fontsize=11, color=_INK, pad=22)
        axes[1, column].set_xlabel("seconds at work", color=_INK)
    axes[0, 0].set_ylabel("per second", color=_INK)
    axes[1, 0].set_ylabel("hit rate, %", color=_INK)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()


def _throughput(axes: "Axes", steps: Sequence[Measure]) -> None:
    ends = list(itertools.accumulate(step.seconds for step in steps))
    for stage, colour in zip(dict.fromkeys(step.stage for step in steps), _COLOURS, strict=False):
        bars = [
            (end - m.seconds, m.items / m.seconds, m.seconds)
            for end, m in zip(ends, steps, strict=True)
            if m.stage == stage
        ]
        left, height, width = zip(*bars, strict=True)
        label = _UNITS[stage]
        axes.bar(
            left, height, width, align="edge", color=colour, alpha=0.85, edgecolor="white", linewidth=0.5, label=label
        )
    _finish(axes)
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _hit_rates(axes: "Axes", steps: Sequence[Measure], colour_of: Mapping[str, str]) -> None:
    ends = list(itertools.accumulate(step.seconds for step in steps))
    for name, colour in colour_of.items():
        rates = [(end, m.caches.get(name, CacheCount()).hit_rate) for end, m in zip(ends, steps, strict=True)]
        points = [(end, 100 * rate) for end, rate in rates if rate is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3.5, linewidth=1.6, label=name)
    axes.set_ylim(-4, 104)
    _finish(axes)


def _finish(axes: "Axes") -> None:
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    axes.set_xlim(left=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=9, borderaxespad=0)
