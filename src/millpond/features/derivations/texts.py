"""Functions of strings. A character is a Unicode code point; the first character has position 1."""

import re
from collections.abc import Sequence

from millpond.features.derivations.casts import cast
from millpond.features.derivations.functions import UNLIMITED, Function, argument, function, plain, written
from millpond.features.derivations.typed import Code, Failure, Faults, Typed, strict, text_literal
from millpond.features.derivations.types import BOOLEAN, INT, STRING
from millpond.features.types import parse_type

MOST_REPEATED = 10_000
"""The longest padding and the most repetitions. They are constants, so that no request can ask for gigabytes."""

_S = (("s", STRING),)
_BY_ZERO_PART = Failure("part 0", unless="{2} == 0")
_REGEX_SIGNS = set("\\^$.|?*+()[]{}")


def _length(args: Sequence[Typed]) -> Typed:
    value = args[0] if args[0].type.kind == "binary" else argument(args[0], STRING, "s")
    return strict(INT, "length({0})", [value], "len({0})")


def _between(text: str, start: int, end: int) -> str:
    return text[max(start, 0) : max(end, 0)] if end > start else ""


def _substring(text: str, position: int, length: int) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return _between(text, start, start + length)


def _substring_to_end(text: str, position: int) -> str:
    return _substring(text, position, 1 << 40)


def _substrings(args: Sequence[Typed]) -> Typed:
    values = [argument(args[0], STRING, "s")]
    values += [argument(arg, INT, name) for arg, name in zip(args[1:], ("position", "length"), strict=False)]
    if len(values) == 2:  # noqa: PLR2004 - arguments
        return strict(STRING, "substring({0}, {1})", values, _substring_to_end)
    return strict(STRING, "substring({0}, {1}, {2})", values, _substring)


def as_text(value: Typed) -> Typed:
    """Return `value` cast to a string, as concatenation does."""
    return cast(value, STRING)


def concat(values: Sequence[Typed]) -> Typed:
    """Return the concatenation of all `values` as strings; null if one of them is."""
    texts = [as_text(value) for value in values]
    python = " + ".join(f"{{{index}}}" for index in range(len(texts)))
    places = ", ".join(f"{{{index}}}" for index in range(len(texts)))
    return strict(STRING, f"concat({places})", texts, python)


def _concat_ws(args: Sequence[Typed]) -> Typed:
    separator, *values = [argument(args[0], STRING, "separator"), *map(as_text, args[1:])]

    def emit(code: Code) -> str:
        between, names = separator.emit(code), [value.emit(code) for value in values]
        result = code.variable()
        kept = f"[part for part in ({''.join(name + ',' for name in names)}) if part is not None]"
        code.line(f"{result} = None if {between} is None else {between}.join({kept})")
        return result

    return Typed(STRING, f"concat_ws({', '.join(it.sql for it in (separator, *values))})", emit, separator.nullable)


def _replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _replaced(args: Sequence[Typed]) -> Typed:
    values = [argument(arg, STRING, name) for arg, name in zip(args, ("s", "old", "new"), strict=False)]
    if len(values) == 2:  # noqa: PLR2004 - arguments
        return strict(STRING, "replace({0}, {1})", values, "{2}({0}, {1}, '')", extra=[_replace])
    return strict(STRING, "replace({0}, {1}, {2})", values, _replace)


def _split_part(text: str, delimiter: str, part: int) -> str:
    parts = text.split(delimiter) if delimiter else [text]
    return parts[part - 1 if part > 0 else part] if abs(part) <= len(parts) else ""


def _split(args: Sequence[Typed]) -> Typed:
    delimiter = written(args[1], STRING, "delimiter")
    if not delimiter or set(delimiter) & _REGEX_SIGNS:
        raise Faults(
            ["argument delimiter must be plain text, as Spark reads it as a regular expression; use split_part"]
        )
    text = argument(args[0], STRING, "s")
    sql = f"split({{0}}, {_braced(text_literal(delimiter))})"
    return strict(parse_type("array<string>"), sql, [text], "{0}.split({1})", extra=[delimiter])


def _braced(sql: str) -> str:
    return sql.replace("{", "{{").replace("}", "}}")


def _left_padded(text: str, length: int, padding: str) -> str:
    missing = length - len(text)
    return text[:length] if missing <= 0 or not padding else (padding * missing)[:missing] + text


def _right_padded(text: str, length: int, padding: str) -> str:
    missing = length - len(text)
    return text[:length] if missing <= 0 or not padding else text + (padding * missing)[:missing]


def _padding(name: str, side: str, python: object) -> Function:
    def build(args: Sequence[Typed]) -> Typed:
        length = _count(args[1], "length")
        padding = written(args[2], STRING, "padding") if len(args) > 2 else " "  # noqa: PLR2004 - arguments
        sql = f"{name}({{0}}, {length}, {_braced(text_literal(padding))})"
        return strict(
            STRING, sql, [argument(args[0], STRING, "s")], "{1}({0}, {2}, {3})", extra=[python, length, padding]
        )

    says = f"s of exactly `length` characters: cut, or padded on the {side}. Length and padding are constants."
    return function(name, "s, length, padding", says, build, 2, 3)


def _count(value: Typed, name: str) -> int:
    count = int(written(value, INT, name))
    if not 0 <= count <= MOST_REPEATED:
        raise Faults([f"argument {name} must be 0 to {MOST_REPEATED}, got {count}"])
    return count


def _repeat(args: Sequence[Typed]) -> Typed:
    count = _count(args[1], "times")
    return strict(STRING, f"repeat({{0}}, {count})", [argument(args[0], STRING, "s")], "{0} * {1}", extra=[count])


def _locate(args: Sequence[Typed]) -> Typed:
    values = [argument(args[1], STRING, "s"), argument(args[0], STRING, "part")]
    return strict(INT, "instr({0}, {1})", values, "{0}.find({1}) + 1")


def like(value: Typed, pattern: Typed, escape: str = "\\") -> Typed:
    """``s LIKE pattern``: ``%`` is any text, ``_`` one character. The pattern is a constant."""
    text = written(pattern, STRING, "pattern")
    regex, position = [], 0
    while position < len(text):
        sign = text[position]
        if sign == escape:
            position += 1
            if text[position : position + 1] not in {"%", "_", escape}:
                raise Faults([f"LIKE pattern {text!r}: after the escape {escape!r} comes %, _ or {escape!r}"])
            regex.append(re.escape(text[position]))
        else:
            regex.append({"%": ".*", "_": "."}.get(sign) or re.escape(sign))
        position += 1
    compiled = re.compile("".join(regex), re.DOTALL).fullmatch
    sql = f"({{0}} LIKE {_braced(text_literal(text))} ESCAPE {_braced(text_literal(escape))})"
    return strict(BOOLEAN, sql, [argument(value, STRING, "of LIKE")], "{1}({0}) is not None", extra=[compiled])


_TWO = (("s", STRING), ("part", STRING))

FUNCTIONS: tuple[Function, ...] = (
    function(
        "length char_length character_length len",
        "s",
        "The number of characters of a string, or of bytes of a binary.",
        _length,
        1,
    ),
    plain("lower lcase", _S, STRING, "{0}.lower()", "s in small letters."),
    plain("upper ucase", _S, STRING, "{0}.upper()", "s in capital letters."),
    plain("trim", _S, STRING, "{0}.strip(' ')", "s without spaces at its ends."),
    plain("ltrim", _S, STRING, "{0}.lstrip(' ')", "s without spaces at its start."),
    plain("rtrim", _S, STRING, "{0}.rstrip(' ')", "s without spaces at its end."),
    function(
        "substring substr",
        "s, position, length",
        "The part of s from a position on; a negative position counts from the end.",
        _substrings,
        2,
        3,
    ),
    plain(
        "left", (("s", STRING), ("length", INT)), STRING, "{0}[:{1}] if {1} > 0 else ''", "The first characters of s."
    ),
    plain(
        "right", (("s", STRING), ("length", INT)), STRING, "{0}[-{1}:] if {1} > 0 else ''", "The last characters of s."
    ),
    function(
        "concat", "x, y, …", "All arguments as one string; null if one is. Also written `||`.", concat, 1, UNLIMITED
    ),
    function(
        "concat_ws",
        "separator, x, …",
        "All arguments that are not null, with the separator between them.",
        _concat_ws,
        2,
        UNLIMITED,
    ),
    plain("instr", _TWO, INT, "{0}.find({1}) + 1", "The position of the first `part` in s, or 0."),
    function("locate position", "part, s", "The position of the first `part` in s, or 0.", _locate, 2),
    plain("contains", _TWO, BOOLEAN, "{1} in {0}", "Whether s holds `part`."),
    plain("startswith", _TWO, BOOLEAN, "{0}.startswith({1})", "Whether s begins with `part`."),
    plain("endswith", _TWO, BOOLEAN, "{0}.endswith({1})", "Whether s ends with `part`."),
    function(
        "replace", "s, old, new", "s with every `old` replaced, or removed if `new` is left out.", _replaced, 2, 3
    ),
    plain(
        "split_part",
        (("s", STRING), ("delimiter", STRING), ("part", INT)),
        STRING,
        _split_part,
        "The part of s with that number, from 1, or from the end from -1; empty if there is none. Part 0 fails.",
        sql="split_part({0}, {1}, nullif({2}, 0))",
        failure=_BY_ZERO_PART,
    ),
    function(
        "split",
        "s, delimiter",
        "The parts of s as an array. The delimiter is a constant without signs of regular expressions.",
        _split,
        2,
    ),
    _padding("lpad", "left", _left_padded),
    _padding("rpad", "right", _right_padded),
    function("repeat", "s, times", "s several times; `times` is a constant.", _repeat, 2),
    plain("reverse", _S, STRING, "{0}[::-1]", "s from its end to its start."),
)
