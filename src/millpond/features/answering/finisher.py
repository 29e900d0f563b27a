"""The last step of an answer, generated as source for a set of features and compiled.

Place on the data path: in a fetcher, after stored values were decoded. For each window a fetcher has the cells of the
closed part (the *base*) and the IR of the open part (the *tail*). What remains is one merge for each cell and one call
for each feature. In loops, looking up the positions would double that cost. So the source is generated once for each
set of features. Additions replace calls where a merge is an addition. A cell that two features share is merged once.
The final computations of counts, sums and averages are written out too.

Unknown cells need a check, so answers with unknown cells are computed feature by feature, without generated source.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from millpond.features.answering.layout import Layout, Projection
from millpond.features.answering.merge_source import merge_source
from millpond.features.cells.cell import Cell, Ir
from millpond.features.cells.counts_and_sums import (
    LOW,
    LOW_BITS,
    LOW_UNIT,
    finished_average,
    finished_count,
    finished_fraction_average,
    finished_fraction_sum,
    finished_sum,
    from_fixed_point,
)
from millpond.features.cells.stored_values import as_is
from millpond.features.partial_ir import UNKNOWN

Finisher = Callable[[Sequence[Projection], Sequence[Ir]], dict[str, Any]]
"""Takes the base and the tail of each window of a layout, and returns the features that are known."""

ColumnFinisher = Callable[[Sequence[Sequence[Projection]], Sequence[Sequence[Cell]]], list[dict[str, Any]]]
"""Takes the base of each window for each key, and the column of the tails for each cell, and returns the features."""

_WRITTEN_OUT: dict[Callable[..., Any], str] = {
    as_is: "{0}",
    finished_count: "{0} if {0} > 0 else None",
    finished_sum: "{0} if {1} > 0 else None",
    finished_average: "{0} / {1} if {1} > 0 else None",
    finished_fraction_sum: "from_fixed_point({0}) if {1} > 0 else None",
    finished_fraction_average: "from_fixed_point({0}, {1}) if {1} > 0 else None",
}
"""The expression of each final computation; the placeholders are the variables of its cells."""

_QUICKLY_WRITTEN_OUT = _WRITTEN_OUT | {
    end: f"(({{0}} >> {LOW}) / {count} * low_unit if not {{0}} & low_bits else {call}) if {{1}} > 0 else None"
    for end, count, call in (
        (finished_fraction_sum, "1", "from_fixed_point({0})"),
        (finished_fraction_average, "{1}", "from_fixed_point({0}, {1})"),
    )
}
"""The same, with `from_fixed_point` written out for numbers without low bits. It raises OverflowError for huge
numbers.
"""


class Finishers:
    """The last step of an answer: `compiled` requires that every cell is known, `careful` works for any.

    `compiled_columns` does the same as `compiled` for many keys, each of whose windows holds its whole tail. It takes
    for each key the base of each window, and for each cell of the plan one column of all tails.

    Args:
        layout: the order of windows and cells in the bases.
        features: the names of the wanted features, in the order of the answer; the layout reads all of them.
        names: their names in a compiled answer; None for their own names.
        on_bound: called for each value of an answer that is only a bound; None to ignore bounds.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> counts = (Aggregation("count", windows=("1h", "1d")),)
    >>> layout = Layout(compile_group_by(GroupBy("route", (Field("origin", "string"),), (), counts)))
    >>> Finishers(layout, ["count_1h", "count_1d"]).compiled([(2,), (5,)], [(1,), (1,)])
    {'count_1h': 3, 'count_1d': 6}
    >>> finish = Finishers(layout, ["count_1h", "count_1d"]).compiled_columns
    >>> finish([[(2,), (5,)], [(0,), (1,)]], [[1, 0]])
    [{'count_1h': 3, 'count_1d': 6}, {'count_1h': None, 'count_1d': 1}]
    """

    __slots__ = ("_features", "_layout", "_names", "_on_bound", "compiled", "compiled_columns")

    def __init__(
        self,
        layout: Layout,
        features: Collection[str],
        names: Mapping[str, str] | None = None,
        on_bound: Callable[[], object] | None = None,
    ) -> None:
        placed = {
            feature.name: (place, feature) for place, window in enumerate(layout.windows) for feature in window.features
        }
        self._layout = layout
        self._on_bound = on_bound
        self._features = tuple((*placed[name], name) for name in features)
        self._names: Mapping[str, str] = {} if names is None else names
        self.compiled: Finisher = self._compile(columns=False)
        self.compiled_columns: ColumnFinisher = self._compile(columns=True)

    def careful(self, bases: Sequence[Projection], tails: Sequence[Ir]) -> dict[str, Any]:
        """Return the features whose cells are all known."""
        layout = self._layout
        totals = [
            dict(
                zip(
                    window.positions,
                    layout.merge(place, bases[place], layout.project(place, tails[place])),
                    strict=True,
                )
            )
            for place, window in enumerate(layout.windows)
        ]
        answer = {}
        for place, feature, name in self._features:
            cells = [totals[place][position] for position in feature.positions]
            if not any(cell is UNKNOWN for cell in cells):
                answer[name] = feature.finish(*cells)
                if feature.limit_met is not None and self._on_bound is not None and feature.limit_met(*cells):
                    self._on_bound()
        return answer

    def limits_met(self, bases: Sequence[Projection], tails: Sequence[Ir]) -> tuple[str, ...]:
        """Return the names of the features whose value is only a bound, because a key has more values than are kept."""
        layout = self._layout
        met = []
        for place, feature, name in self._features:
            if feature.limit_met is not None:
                merged = layout.merge(place, bases[place], layout.project(place, tails[place]))
                total = dict(zip(layout.windows[place].positions, merged, strict=True))
                cells = [total[position] for position in feature.positions]
                if not any(cell is UNKNOWN for cell in cells) and feature.limit_met(*cells):
                    met.append(name)
        return tuple(met)

    def _compile(self, *, columns: bool) -> Any:
        names: dict[str, Any] = {
            "on_bound": self._on_bound,
            "from_fixed_point": from_fixed_point,
            "low_bits": LOW_BITS,
            "low_unit": LOW_UNIT,
            "no_tails": self._layout.no_tails,
        }
        lines = self._answer_lines(names, columns=columns)
        if columns:
            tails = "".join(f"tail_{position}, " for position in range(len(self._layout.plan.cells.cells)))
            head = ["answers = []", f"for bases, {tails}in zip(bases, *tails, strict=True):"]
            lines = [*head, *(f"    {line}" for line in lines), "return answers"]
        else:
            without = self._answer_lines(names, columns=False, has_tails=False)
            lines = ["if tails is no_tails:", *(f"    {line}" for line in without), *lines]
        source = "\n".join(["def finish(bases, tails):", *(f"    {line}" for line in lines)])
        exec(compile(source, "<finisher>", "exec"), names)  # noqa: S102 - source of positions and names only
        return names["finish"]

    def _answer_lines(self, names: dict[str, Any], *, columns: bool, has_tails: bool = True) -> list[str]:
        """Return the source that makes the answer of one key."""
        lines, cells_of = self._merged_cells(names, columns=columns, has_tails=has_tails)
        items: list[str] = []
        quick_items: list[str] = []
        for number, (place, feature, name) in enumerate(self._features):
            names[f"finish_{number}"] = feature.finish
            read = [cells_of[place, position] for position in feature.positions]
            cells = ", ".join(read)
            for ends, into in ((_WRITTEN_OUT, items), (_QUICKLY_WRITTEN_OUT, quick_items)):
                written = ends.get(feature.finish, f"finish_{number}({cells})").format(*read)
                into.append(f"{self._names.get(name, name)!r}: {written}")
            if feature.limit_met is not None and self._on_bound is not None:
                names[f"limit_met_{number}"] = feature.limit_met
                lines.append(f"if limit_met_{number}({cells}): on_bound()")
        give = "answers.append({{{}}})" if columns else "return {{{}}}"
        answer, quick_answer = give.format(", ".join(items)), give.format(", ".join(quick_items))
        if answer == quick_answer:
            lines.append(answer)
        else:
            lines += ["try:", f"    {quick_answer}", "except OverflowError:", f"    {answer}"]
        return lines

    def _merged_cells(
        self, names: dict[str, Any], *, columns: bool, has_tails: bool
    ) -> tuple[list[str], dict[tuple[int, int], str]]:
        """Return the source of the merges, and for each window and cell of a feature the variable that holds it."""
        lines: list[str] = []
        cells_of: dict[tuple[int, int], str] = {}
        for place, window in enumerate(self._layout.windows):
            used = {position for at, feature, _ in self._features if at == place for position in feature.positions}
            if not used:
                continue
            base = "".join(f"base_{place}_{position}, " for position in window.positions)
            lines.append(f"{base} = bases[{place}]")
            if not has_tails:
                cells_of |= {(place, position): f"base_{place}_{position}" for position in used}
                continue
            if not columns:
                lines.append(f"tail = tails[{place}]")
            for merge, position in zip(self._layout.merges[place], window.positions, strict=True):
                if position in used:
                    cells_of[place, position] = variable = f"cell_{place}_{position}"
                    tail = f"tail_{position}" if columns else f"tail[{position}]"
                    merged = merge_source(merge, f"base_{place}_{position}", tail, f"merge_{position}", names)
                    lines.append(f"{variable} = {merged}")
        return lines, cells_of
