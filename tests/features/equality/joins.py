"""Random Joins with their data: key mapping, prefixes, derivations, context fields; and what the rule says of them."""

from dataclasses import replace

from hypothesis import strategies as st

from millpond.features import Derivation, Field, Join, JoinPart
from millpond.features.compiled_cells import compile_cells
from tests.features.equality import rule
from tests.features.equality.definitions import WHOLE_DAYS, group_bys, inputs_of

USERS = (("a", 1), ("b", 2), ("a", 2))
COLUMNS = {"user": ("user", "buyer"), "shop": ("shop", "place")}
"""The columns of a Join that a key may come from."""

CONTEXT = (Field("amount", "double"),)
_NUMBERS = ("int", "long", "float", "double")


def _is_null(name, _):
    return f"{name} IS NULL", lambda row: row[name] is None


def _number(name, amount):
    written = amount or "5e-1"
    return (
        f"coalesce(CAST({name} AS DOUBLE), {written})",
        lambda row: (row[amount] if amount else 0.5) if row[name] is None else float(row[name]),
    )


def _chosen(name, _):
    return f"CASE WHEN {name} IS NULL THEN 'none' ELSE 'some' END", lambda row: "none" if row[name] is None else "some"


@st.composite
def derivations(draw, prefix, types, amount=None):
    """Give derivations over some columns, and for each the function of a row that says what it is."""
    made, says = [], {}
    for number in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(types)))
        forms = [_is_null, _chosen] + ([_number] if types[name] in _NUMBERS else [])
        expression, function = draw(st.sampled_from(forms))(name, amount)
        made.append(Derivation(f"{prefix}{number}", expression))
        says[f"{prefix}{number}"] = function
    return tuple(made), says


class DrawnJoin:
    """A Join, the events of its parts, and what it answers.

    Attributes:
        join: the definition.
        events: of each part, by the name of its GroupBy: (key, time, inputs).
    """

    def __init__(self, join, events, says):
        self.join = join
        self.events = events
        self._says = says

    def answers(self, request, query, *, ends, sees_until=None):
        """What the rule says.

        Args:
            request: keys and context fields.
            query: as of when.
            ends: the batch end of each GroupBy: a snapshot stands as of it.
            sees_until: of each GroupBy, where the tile ends that holds the query, if it counts whole.
        """
        values = {}
        for part in self.join.parts:
            group_by = part.group_by
            key = tuple(request[column] for column, _ in part.columns)
            own = [(time, inputs) for of_key, time, inputs in self.events[group_by.name] if of_key == key]
            is_snapshot = group_by.accuracy == "snapshot"
            found = rule.answers(
                group_by,
                own,
                ends[group_by.name] if is_snapshot else query,
                sees_until_ms=None if is_snapshot or sees_until is None else sees_until[group_by.name],
            )
            row = found | dict(zip((name for _, name in part.columns), key, strict=True))
            found |= {one.name: self._says[group_by.name][one.name](row) for one in group_by.derivations}
            values |= {part.renamed(name): value for name, value in found.items()}
        row = values | request
        return values | {one.name: self._says[""][one.name](row) for one in self.join.derivations}

    def differences(self, found, expected):
        """Name the features that differ, as `rule.differences` does for one GroupBy."""
        wrong = {}
        names = set()
        for part in self.join.parts:
            own = {name: part.renamed(name) for name in part.group_by.feature_names}
            names |= set(own.values())
            wrong |= rule.differences(
                part.group_by,
                {name: found[named] for name, named in own.items() if named in found},
                {name: expected[named] for name, named in own.items()},
            )
        wrong |= {
            name: (found.get(name, "missing"), value)
            for name, value in expected.items()
            if name not in names and repr(found.get(name)) != repr(value)
        }
        return wrong | {name: (value, "not expected") for name, value in found.items() if name not in expected}


@st.composite
def drawn_joins(draw, times):
    """Draw a Join of one to three GroupBys, tiled, untiled and snapshots, and their events at some times."""
    parts, events, says, types = [], {}, {}, {field.name: field.type for field in CONTEXT}
    for number in range(draw(st.integers(1, 3))):
        name = f"part{number}"
        form = draw(st.sampled_from(("tiled", "untiled", "snapshot")))
        options = {"accuracy": "snapshot"} if form == "snapshot" else {"tiled": form == "tiled"}
        windows = {"windows": WHOLE_DAYS} if form == "snapshot" else {}
        plain = draw(group_bys(name=name, **windows, **options))
        features = {feature.name: feature.type for feature in compile_cells(plain).features}
        own, says[name] = draw(derivations("d", features | {field.name: field.type for field in plain.keys}))
        group_by = replace(plain, derivations=own)
        mapping = {draw(st.sampled_from(COLUMNS[field.name])): field.name for field in group_by.keys}
        prefix = draw(st.sampled_from((None, f"p{number}") + (("",) if number == 0 else ())))
        part = JoinPart(group_by, mapping, prefix)
        parts.append(part)
        types |= {part.renamed(feature): type_ for feature, type_ in features.items()}
        types |= {column: {"user": "string", "shop": "long"}[key] for column, key in part.columns}
        rows = st.tuples(st.sampled_from(USERS), times, inputs_of(group_by))
        events[name] = draw(st.lists(rows, max_size=8))
    derived, says[""] = draw(derivations("of_join", types, "amount"))
    return DrawnJoin(Join("joined", tuple(parts), derivations=derived, context=CONTEXT), events, says)


@st.composite
def requests_of(draw, join):
    """A request of a Join: its keys, any of them None, and its context."""
    values = {"string": ("a", "b", "a", "b", None), "long": (1, 2, 1, 2, None)}
    keys = {field.name: draw(st.sampled_from(values[field.type])) for field in join.keys}
    return keys | {"amount": draw(st.sampled_from((None, 0.25, -3.0)))}
