"""Functions of arrays and maps, and of nulls."""

from collections.abc import Sequence

from millpond.features.derivations.casts import coerce
from millpond.features.derivations.functions import UNLIMITED, Function, function
from millpond.features.derivations.operators import (
    access,
    arithmetic,
    case,
    coalesce,
    comparing,
    element_at,
    is_null,
    negation,
    null_if,
)
from millpond.features.derivations.typed import Code, Faults, Typed, strict
from millpond.features.derivations.types import BOOLEAN, INT
from millpond.features.types import DataType


def _size(args: Sequence[Typed]) -> Typed:
    kind = args[0].type.kind
    if kind not in {"array", "map"}:
        raise Faults([f"size needs an array or a map, got {args[0].type}"])
    sql = "array_size({0})" if kind == "array" else "array_size(map_keys({0}))"
    return strict(INT, sql, [args[0]], "len({0})")


def _array_size(args: Sequence[Typed]) -> Typed:
    _arrays_only("array_size", args[0])
    return _size(args)


def _get(args: Sequence[Typed]) -> Typed:
    _arrays_only("get", args[0])
    return access(args[0], args[1])


def _arrays_only(name: str, value: Typed) -> None:
    if value.type.kind != "array":
        raise Faults([f"{name} needs an array, got {value.type}"])


def _element_type(value: Typed, name: str) -> DataType:
    if value.type.kind != "array" or value.type.element is None or not value.type.element.is_ordered:
        raise Faults([f"{name} needs an array of scalars, got {value.type}"])
    return value.type.element


def _array_contains(args: Sequence[Typed]) -> Typed:
    element = _element_type(args[0], "array_contains")
    wanted = coerce(args[1], element)
    test = comparing("=", element).format("it", "{1}")
    python = f"True if any(it is not None and ({test}) for it in {{0}}) else None if None in {{0}} else False"
    return strict(BOOLEAN, "array_contains({0}, {1})", [args[0], wanted], python, nullable=True)


def _map_contains_key(args: Sequence[Typed]) -> Typed:
    key = args[0].type.key
    if key is None or key.is_floating:
        raise Faults([f"map_contains_key cannot look up a key in {args[0].type}"])
    return strict(BOOLEAN, "map_contains_key({0}, {1})", [args[0], coerce(args[1], key)], "{1} in {0}")


def _array_extreme(name: str, symbol: str) -> Function:
    def build(args: Sequence[Typed]) -> Typed:
        element = _element_type(args[0], name)
        test = comparing(symbol, element).format("it", "{best}")

        def emit(code: Code) -> str:
            array, best = args[0].emit(code), code.variable()
            code.line(f"{best} = None")
            better = f"if it is not None and ({best} is None or ({test.format(best=best)})):"
            with code.block(f"for it in {array} or ():"), code.block(better):
                code.line(f"{best} = it")
            return best

        return Typed(element, f"{name}({args[0].sql})", emit)

    which = "greatest" if symbol == ">" else "least"
    return function(name, "a", f"The {which} element that is not null; null if there is none.", build, 1)


def _if(args: Sequence[Typed]) -> Typed:
    return case([(args[0], args[1])], args[2])


def _nvl2(args: Sequence[Typed]) -> Typed:
    return case([(negation(is_null(args[0])), args[1])], args[2])


def _operator(name: str, symbol: str, says: str) -> Function:
    return function(name, "x, y", says, lambda args: arithmetic(symbol, args[0], args[1]), 2)


FUNCTIONS: tuple[Function, ...] = (
    function("if", "condition, x, y", "x if the condition is true, else y.", _if, 3),
    function("coalesce", "x, y, …", "The first argument that is not null.", coalesce, 1, UNLIMITED),
    function("nvl ifnull", "x, y", "x, or y if x is null.", coalesce, 2),
    function("nvl2", "x, y, z", "y if x is not null, else z.", _nvl2, 3),
    function("nullif", "x, y", "Null if x = y, else x.", lambda args: null_if(args[0], args[1]), 2),
    function("isnull", "x", "The same as x IS NULL.", lambda args: is_null(args[0]), 1),
    function("isnotnull", "x", "The same as x IS NOT NULL.", lambda args: negation(is_null(args[0])), 1),
    _operator("try_add", "+", "The same as x + y."),
    _operator("try_subtract", "-", "The same as x - y."),
    _operator("try_multiply", "*", "The same as x * y."),
    _operator("try_divide", "/", "The same as x / y."),
    _operator("try_mod", "%", "The same as x % y."),
    function("size cardinality", "c", "The number of elements of an array or map.", _size, 1),
    function("array_size", "a", "The number of elements of an array.", _array_size, 1),
    function(
        "element_at try_element_at",
        "c, key",
        "The value of a key, or null; the element of an array, from 1, or from the end from -1.",
        lambda args: element_at(args[0], args[1]),
        2,
    ),
    function("get", "a, index", "The element of an array, from 0. The same as a[index].", _get, 2),
    function(
        "array_contains", "a, x", "Whether the array holds x; null if it does not but holds a null.", _array_contains, 2
    ),
    function("map_contains_key", "m, key", "Whether the map has the key.", _map_contains_key, 2),
    _array_extreme("array_max", ">"),
    _array_extreme("array_min", "<"),
)
