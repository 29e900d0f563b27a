"""How every benchmark reports: a table to read now, a picture to keep, one line of JSON to compare.

A benchmark measures, then calls `report` once. The invariant: table, picture and JSON come from the
same run, and the JSON is the last line on stdout, so that `... | tail -n 1` is a result. Files
appear whole or not at all. The machine is part of the result, because a figure without its machine
says nothing. The table is kept as Markdown too, which `benchmarks.figures` copies into the docs.

The colours are Okabe and Ito's, told apart with every common kind of colour blindness; bars also
carry their values, so that no reading depends on colour.

    from benchmarks.report import grouped_bars, report

    report(
        "spark_stateful",
        title="Keyed state: rows per second",
        columns=("size", "transformWithState", "millpond"),
        rows=[(size, theirs, ours)],
        result={"ratio": {size: ours / theirs}},
        draw=lambda axes: grouped_bars(axes, [size], {"transformWithState": [theirs], "millpond": [ours]}),
    )

Source: Okabe and Ito, "Color Universal Design", 2008.
"""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from millpond.doctor import is_compiled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"
"""Where pictures and JSON land."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's palette, strongest contrasts first. Pictures take their colours from it in order."""

_INK = "#333333"
_WIDTH, _HEIGHT, _HEIGHT_OF_BAR = 9.0, 5.0, 0.26
"""Inches."""

_CHARACTERS_ACROSS = 84
"""Characters of names that fit below standing bars."""

_GAP = 2
_STYLE = {
    "figure.figsize": (_WIDTH, _HEIGHT),
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.size": 11,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def report(
    name: str,
    *,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    result: Mapping[str, object],
    draw: "Callable[[Axes], None]",
    folder: Path = RESULTS,
) -> None:
    """Print the table, write `name.md`, `name.png` and `name.json`, print the JSON as the last line.

    Args:
        name: the benchmark's module name; the files are called after it.
        title: what was measured and in which unit, over the table and the picture.
        columns: the table's headings.
        rows: one sequence of cells per line. Text stands left; numbers stand right, whole ones and
            those from 100 up with thousands separated, smaller ones with three digits.
        result: what the JSON holds; `machine` is added to it.
        draw: draws on the axes it is given, whose style, title and footnote are set already.
        folder: where the files go; made if missing.

    Raises:
        ValueError: a row has not as many cells as there are columns, or the result is not JSON.
    """
    line = json.dumps({**result, "machine": machine()}, allow_nan=False)
    console = Console(width=None if os.isatty(1) else 160, highlight=False)
    console.print(_table(title, columns, rows))
    folder.mkdir(parents=True, exist_ok=True)
    package = "PYTHONPATH=build/compiled " if is_compiled() else ""
    markdown = f"{_markdown(columns, rows)}\n\n{_where()}: `{package}.venv/bin/python -m benchmarks.{name}`\n"
    _replace(folder / f"{name}.md", lambda path: path.write_text(markdown, encoding="utf-8"))
    write_picture(folder / f"{name}.png", title, draw)
    _replace(folder / f"{name}.json", lambda path: path.write_text(line + "\n", encoding="utf-8"))
    print(f"picture: {folder / name}.png", flush=True)
    print(line, flush=True)


def grouped_bars(
    axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float]], *, ylabel: str = ""
) -> None:
    """One cluster of bars per group, one bar per series, each with its value written beside it.

    The clusters stand side by side. If their names do not fit there, they lie one below the other.

    Args:
        axes: where to draw.
        groups: the clusters' names.
        series: per series its name and one value per group; shown in a legend.
        ylabel: what the bars measure, with the unit.
    """
    if _fit_side_by_side(groups):
        _standing_bars(axes, groups, series, ylabel)
    else:
        _lying_bars(axes, groups, series, ylabel)


def _fit_side_by_side(groups: Sequence[str]) -> bool:
    longest = max((len(line) for group in groups for line in group.split("\n")), default=0)
    return (longest + _GAP) * len(groups) <= _CHARACTERS_ACROSS


def _standing_bars(axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str) -> None:
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * width
        places = [place + offset for place in range(len(groups))]
        bars = axes.bar(places, values, width * 0.92, label=name)
        axes.bar_label(bars, labels=[format_number(value) for value in values], padding=3, fontsize=9, color=_INK)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.set_ylabel(label)
    axes.margins(y=0.18)
    axes.legend(loc="upper left", ncols=len(series))


def _lying_bars(axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str) -> None:
    height = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * height
        places = [place + offset for place in range(len(groups))]
        bars = axes.barh(places, values, height * 0.92, label=name)
        axes.bar_label(bars, labels=[format_number(value) for value in values], padding=3, fontsize=9, color=_INK)
    picture = axes.get_figure(root=True)
    if picture is not None:
        picture.set_size_inches(_WIDTH, max(_HEIGHT, _HEIGHT_OF_BAR * len(groups) * len(series) + 1.2))
    axes.set_yticks(range(len(groups)), [group.replace("\n", " ") for group in groups])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.xaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    if len(series) > 1:
        axes.legend(loc="lower right")


def format_number(value: float) -> str:
    """A number as people read it.

    >>> [format_number(value) for value in (1234567, 1234.5, 9.94, 0.01234, 0.0)]
    ['1,234,567', '1,234', '9.94', '0.0123', '0']
    """
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> dict[str, object]:
    """What the figures depend on: usable cores, memory, processor, system, Python, and whether Millpond is compiled."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "compiled": is_compiled(),
    }


def _where() -> str:
    where = "{cores} cores, {memory_gib} GiB, {processor}, {system}, Python {python}".format(**machine())
    return f"{where}, compiled" if is_compiled() else where


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for row in rows:
        if len(row) != len(columns):
            message = f"table {title!r}: expected {len(columns)} cells ({', '.join(columns)}), got {len(row)}: {row!r}"
            raise ValueError(message)
    for column, numeric in zip(columns, _numeric(rows), strict=True):
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    rule = ["---:" if numeric else "---" for numeric in _numeric(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *(map(_cell, row) for row in rows)))


def _numeric(rows: Sequence[Sequence[object]]) -> list[bool]:
    """Per column, whether all its cells are numbers."""
    return [all(isinstance(cell, int | float) for cell in column) for column in zip(*rows, strict=True)]


def _cell(cell: object) -> str:
    return format_number(cell) if isinstance(cell, int | float) else str(cell)


def write_picture(path: Path, title: str, draw: "Callable[[Axes], None]") -> None:
    """One picture in the style of all, for a benchmark that has more to show than `report` draws."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display is needed, nor opened
    from cycler import cycler
    from matplotlib import pyplot as plt

    with plt.style.context({**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        figure, axes = plt.subplots(layout="constrained")
        # Over the whole picture: beside long names the axes are too narrow for it.
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=_INK)
        draw(axes)
        figure.supxlabel(_where(), x=0.99, ha="right", fontsize=8, color="#777777")
        _replace(path, lambda place: figure.savefig(place, format="png"))
        plt.close(figure)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path` and put it in place once it is whole."""
    unfinished = path.with_name(path.name + ".tmp")
    write(unfinished)
    unfinished.replace(path)
