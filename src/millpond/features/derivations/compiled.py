"""Derivations ready to run: one Python function for the fetcher, texts for Spark.

All derivations of a row become one function, written as Python source and executed once. Each derivation has its own
``try``, which costs nothing until it fails. A fault in one derivation makes that one null, with the reason,
and does not affect the row and the others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any

from millpond.errors import DataError, MissingDependencyError, OptionError
from millpond.features.derivations import numbers
from millpond.features.derivations.definition import Derivation
from millpond.features.derivations.typed import Code, Faults, Typed
from millpond.features.types import DataType, parse_type

_CLASSES: dict[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp": datetime,
    "decimal": Decimal,
    "array": list,
    "map": dict,
}


class CompiledDerivations:
    """Derivations over rows of known columns, checked and ready to run.

    A derivation may use others, in any order, but not itself. An operation that fails (division by zero, overflow,
    a text that is not a number, a date outside the years 1 to 9999) is null, so ``coalesce(a / b, 0)`` is 0 where b
    is 0. A derivation that is null after such a failure has a reason. Spark gives the same values from
    `spark_expressions`; its session's time zone must be UTC.

    It can be pickled: the copy is compiled again when it is unpickled.

    Args:
        derivations: what to compute. Their names differ from each other and from the columns'.
        columns: the name and type of every value of a row. Types are ``boolean``, ``int``, ``long``, ``float``,
            ``double``, ``string``, ``binary``, ``date``, ``timestamp``, ``decimal(p,s)``, and ``array<…>`` and
            ``map<…,…>`` of them.

    Raises:
        OptionError: a derivation is faulty; the error has every fault of every derivation, with its place.
        MissingDependencyError: sqlglot is not installed.

    >>> ready = CompiledDerivations([Derivation("ratio", "a / b")], {"a": "long", "b": "long"})
    >>> ready.apply({"a": 1, "b": 4})
    ({'ratio': 0.25}, {})
    >>> ready.apply({"a": 1, "b": 0})
    ({'ratio': None}, {'ratio': 'a / b: division by zero'})
    >>> ready.spark_expressions()
    [('ratio', 'try_divide(CAST(`a` AS DOUBLE), CAST(`b` AS DOUBLE))')]
    >>> ready.result_types, ready.inputs
    ({'ratio': 'double'}, {'ratio': ('a', 'b')})
    """

    def __init__(self, derivations: Iterable[Derivation], columns: Mapping[str, str]) -> None:
        self.derivations = tuple(derivations)
        self.columns = dict(columns)
        types = {name: _column_type(name, text) for name, text in self.columns.items()}
        ordered, faults = _checked(self.derivations, types)
        if faults:
            raise OptionError("\n".join(faults))
        self.result_types: dict[str, str] = {}
        """The type of each derived value, in the order of the derivations."""
        self.inputs: dict[str, tuple[str, ...]] = {}
        """The columns that each derivation reads, directly or through other derivations."""
        by_name = {name: (typed, inputs) for name, typed, _, inputs in ordered}
        for derivation in self.derivations:
            typed, inputs = by_name[derivation.name]
            self.result_types[derivation.name] = str(typed.type)
            self.inputs[derivation.name] = inputs
        self._expressions = [(name, typed.sql) for name, typed, _, _ in ordered]
        self.source, self._apply = _written([it.name for it in self.derivations], ordered, types)

    def apply(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the derived values of a row, and the reason for each that is null because something failed.

        Args:
            values: the row: bool, int, float, str, bytes, date, datetime with a time zone, Decimal, list or dict
                by column, or None. Further names are ignored.

        A value that is missing, or that has another type than its column, is such a failure.
        """
        return self._apply(values)

    def spark_expressions(self) -> list[tuple[str, str]]:
        """Return the name and the Spark SQL of each derivation, ordered so that each uses only earlier ones.

        Pass them to ``selectExpr`` as ``"{sql} AS `{name}`"``, after ``"*"``: in one select, Spark sees the names
        before.
        """
        return list(self._expressions)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledDerivations, (self.derivations, self.columns)

    def __repr__(self) -> str:
        return f"CompiledDerivations({', '.join(self.result_types)})"


_Ready = tuple[str, Typed, tuple[str, ...], tuple[str, ...]]
"""A derivation: its name, its typed expression, the columns it names itself, and all the columns it needs."""


def derivation_faults(
    derivations: Sequence[Derivation], columns: Mapping[str, str], untyped: Collection[str] = ()
) -> list[str]:
    """Return everything that is wrong with derivations; each fault has its place.

    Args:
        derivations: as for `CompiledDerivations`.
        columns: as for `CompiledDerivations`.
        untyped: names of further columns, whose types are not known. A derivation that uses one is not checked.

    Raises:
        MissingDependencyError: sqlglot is not installed.

    >>> derivation_faults([Derivation("d", "a + c"), Derivation("e", "b + c")], {"a": "long"}, untyped=("b",))
    ["derivation 'd': line 1, column 5: c: there is no column 'c'; known are a"]
    """
    return _checked(derivations, {name: _column_type(name, text) for name, text in columns.items()}, untyped)[1]


def _column_type(name: str, text: str) -> DataType:
    try:
        return parse_type(text)
    except OptionError as error:
        raise OptionError(f"column {name!r}: {error}") from None


def _checked(
    derivations: Sequence[Derivation], types: Mapping[str, DataType], untyped: Collection[str] = ()
) -> tuple[list[_Ready], list[str]]:
    """Return the derivations that are right, each after those it uses, and what is wrong with the others."""
    if not derivations:
        return [], []
    try:
        import sqlglot  # noqa: F401 - only asked for here, imported by `grammar`
    except ImportError as error:
        raise MissingDependencyError('Derivations need sqlglot. Run: pip install "millpond[features]"') from error
    from millpond.features.derivations.check import check
    from millpond.features.derivations.grammar import names_in, parse

    faults = _name_faults(derivations, types)
    trees = {}
    for derivation in derivations:
        try:
            trees[derivation.name] = parse(derivation.expression)
        except Faults as found:
            faults += [f"derivation {derivation.name!r}: {fault}" for fault in found.found]
    uses = {name: names_in(tree) & trees.keys() for name, tree in trees.items()}
    scope = {name: _column(name, type_, f"c{place}") for place, (name, type_) in enumerate(types.items())}
    ready: dict[str, _Ready] = {}
    for place, name in enumerate(_in_order(uses, faults)):
        if any(used not in ready for used in uses[name]):
            continue  # the fault of the used one is reported already
        # A faulty derivation has no type. A name that leads to it is not unknown, so it is not reported again.
        if names_in(trees[name]) & ({it.name for it in derivations} - ready.keys() | set(untyped)):
            continue
        try:
            typed = check(trees[name], scope)
        except Faults as found:
            faults += [f"derivation {name!r}: {fault}" for fault in found.found]
            continue
        named = [it for it in scope if it in names_in(trees[name])]
        columns = [it for used in named for it in (ready[used][3] if used in ready else (used,))]
        own = tuple(it for it in named if it in types)
        ready[name] = (name, typed, own, tuple(dict.fromkeys(columns)))
        scope[name] = _column(name, typed.type, f"d{place}")
    return list(ready.values()), faults


def _name_faults(derivations: Sequence[Derivation], types: Mapping[str, DataType]) -> list[str]:
    """Return faults of names that are taken; Spark does not distinguish upper and lower case."""
    faults = []
    taken: dict[str, str] = {}
    for name in types:
        if name.lower() in taken:
            faults.append(f"column {name!r}: its name differs from {taken[name.lower()]!r} in capital letters only")
        taken[name.lower()] = f"column {name}"
    for derivation in derivations:
        lower = derivation.name.lower()
        if lower in taken:
            faults.append(f"derivation {derivation.name!r}: its name is taken by {taken[lower]!r}")
        taken[lower] = f"derivation {derivation.name}"
    return faults


def _in_order(uses: Mapping[str, set[str]], faults: list[str]) -> list[str]:
    """Return the names, each after those it uses; a cycle is a fault."""
    try:
        return list(TopologicalSorter({name: sorted(used) for name, used in uses.items()}).static_order())
    except CycleError as error:
        faults.append(f"derivations use each other in a cycle: {' -> '.join(reversed(error.args[1]))}")
        return []


def _column(name: str, type_: DataType, variable: str) -> Typed:
    quoted = name.replace("`", "``")
    return Typed(type_, f"`{quoted}`", lambda _: variable)


def _written(
    names: Sequence[str], ordered: Sequence[_Ready], types: Mapping[str, DataType]
) -> tuple[str, Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, str]]]]:
    """Return the source of the function that derives the values of a row, and the function."""
    variables = {name: f"c{place}" for place, name in enumerate(types)}
    results = {name: f"d{place}" for place, (name, *_) in enumerate(ordered)}
    code = Code()
    with code.block("def derive(values):"):
        code.line("reasons = {}")
        for name, typed, own, _ in ordered:
            result = results[name]
            with code.block("try:"):
                code.line("why = None")
                for column in own:
                    _load(code, column, types[column], variables[column])
                code.line(f"{result} = {typed.emit(code)}")
                with code.block(f"if {result} is None and why is not None:"):
                    code.line(f"reasons[{name!r}] = why")
            with code.block("except Exception as error:"):
                code.line(f"{result} = None")
                code.line(f"reasons[{name!r}] = {code.constant(_reason)}(error)")
        pairs = ", ".join(f"{name!r}: {results[name]}" for name in names)
        code.line(f"return {{{pairs}}}, reasons")
    source = "\n".join(code.lines)
    namespace: dict[str, Any] = dict(code.constants)
    try:
        exec(compile(source, "<derivations>", "exec"), namespace)  # noqa: S102 - written here; it holds names and constants only
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise OptionError(f"derivations {', '.join(names)}: too deeply nested ({error})") from None
    return source, namespace["derive"]


def _load(code: Code, column: str, type_: DataType, variable: str) -> None:
    """Write the code that takes a column's value from the row; a value of the declared class costs one comparison."""
    code.line(f"{variable} = values[{column!r}]")
    load = code.constant(_loader(column, type_))
    if type_.kind == "timestamp":
        test = f"{variable} is not None and getattr({variable}, 'tzinfo', None) is not {code.constant(UTC)}"
    elif type_.kind == "decimal":
        test = f"{variable} is not None"
    else:
        test = f"{variable}.__class__ is not {code.constant(_CLASSES[type_.kind])} and {variable} is not None"
    with code.block(f"if {test}:"):
        code.line(f"{variable} = {load}({variable})")


def _loader(column: str, type_: DataType) -> Callable[[Any], Any]:
    """Return a function that converts a value of another class to the declared type, if that loses nothing."""
    step, limit = numbers.bounds(type_.precision, type_.scale)

    def load(value: Any) -> Any:
        kind = type_.kind
        if kind in {"float", "double"} and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
        if kind == "decimal" and isinstance(value, int | Decimal) and not isinstance(value, bool):
            fitted = numbers.fitted(Decimal(value), step, limit)
            if fitted is not None:
                return fitted
        if kind == "array" and isinstance(value, tuple):
            return list(value)
        if kind == "map" and isinstance(value, Mapping):
            return dict(value)
        wanted = "a datetime with a time zone" if kind == "timestamp" else _CLASSES[kind].__name__
        raise DataError(f"column {column!r} is {type_}: expected {wanted}, got {value!r}")

    return load


def _reason(error: Exception) -> str:
    """Return why a derivation could not be computed at all."""
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, KeyError):
        return f"the row has no value for column {error}"
    return f"{type(error).__name__}: {error}"
