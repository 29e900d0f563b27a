"""Parse Spark's DDL text for schemas (`"user string, at timestamp"`) without a JVM.

PySpark asks the JVM's parser, which only a driver has. A processor that is tested alone has no driver, so
this recursive-descent parser reads the text. It is strict: text that it does not know is an error with the
position, never a guess. What it accepts it reads as Spark does.

Source: the `colDefinitionList` and `dataType` rules of Spark's SqlBaseParser.g4.
"""

import re
from collections.abc import Callable
from typing import NoReturn

from pyspark.sql import types as t

from millpond.errors import OptionError

_TOKEN = re.compile(
    r"\s+|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+)\b|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<text>'(?:[^'\\]|\\[ntrb'\"\\])*'|\"(?:[^\"\\]|\\[ntrb'\"\\])*\")|(?P<sign>[<>(),:])",
    re.ASCII,
)

_ATOMIC: dict[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "void": t.NullType,
    "variant": t.VariantType,
}
_DECIMAL = frozenset({"decimal", "dec", "numeric"})
_SIZED_TEXT = {"char": t.CharType, "character": t.CharType, "varchar": t.VarcharType}
_MOST_DIGITS = 38
_YEAR_TO_MONTH = ("year", "month")
_DAY_TO_SECOND = ("day", "hour", "minute", "second")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b"}


def parse_ddl(text: str) -> t.StructType:
    """Return the schema that Spark would read from a text. An OptionError says where the text cannot be read.

    >>> parse_ddl("user string NOT NULL, amounts array<decimal(10, 2)>").simpleString()
    'struct<user:string,amounts:array<decimal(10,2)>>'
    """
    return _Parser(text).fields_of_text()


class _Parser:
    """One text, its tokens, and the position of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        start = 0
        while start < len(text):
            found = _TOKEN.match(text, start)
            if found is None:
                self._refuse("a name or one of < > ( ) , :", start)
            if found.lastgroup is not None:
                self._tokens.append((found.lastgroup, found[0], start))
            start = found.end()
        self._tokens.append(("end", "", len(text)))

    def fields_of_text(self) -> t.StructType:
        fields = [self._field()]
        while self._took(","):
            fields.append(self._field())
        if self._kind != "end":
            self._refuse("a comma or the end")
        return t.StructType(fields)

    def _field(self) -> t.StructField:
        if self._kind == "quoted":
            name = self._next()[1:-1].replace("``", "`")
        elif self._kind == "name":
            name = self._next()
        else:
            self._refuse("the name of a field")
        self._took(":")
        kind = self._type()
        nullable = True
        if self._took("not"):
            self._need("null")
            nullable = False
        metadata = {"comment": self._quoted_text()} if self._took("comment") else None
        return t.StructField(name, kind, nullable, metadata)

    def _type(self) -> t.DataType:
        start = self._tokens[self._at][2]
        word = self._next().lower() if self._kind == "name" else ""
        if word in _ATOMIC:
            return _ATOMIC[word]()
        if word == "time":
            return t.TimeType(self._numbers(1)[0]) if self._next_is("(") else t.TimeType()
        if word in _DECIMAL:
            return self._decimal(start)
        if word in _SIZED_TEXT:
            return _SIZED_TEXT[word](self._numbers(1)[0])
        if word == "array":
            self._need("<")
            element = self._type()
            self._need(">")
            return t.ArrayType(element)
        if word == "map":
            self._need("<")
            key = self._type()
            self._need(",")
            value = self._type()
            self._need(">")
            return t.MapType(key, value)
        if word == "struct":
            return self._struct()
        if word == "interval":
            return self._interval()
        return self._refuse("a type, such as string, long or array<double>", start)

    def _struct(self) -> t.StructType:
        self._need("<")
        if self._took(">"):
            return t.StructType([])
        fields = [self._field()]
        while self._took(","):
            fields.append(self._field())
        self._need(">")
        return t.StructType(fields)

    def _decimal(self, start: int) -> t.DecimalType:
        numbers = self._numbers(2) if self._next_is("(") else [10]
        precision, scale = (*numbers, 0)[:2]
        if not scale <= precision <= _MOST_DIGITS:
            self._refuse(f"a decimal of at most {_MOST_DIGITS} digits, no more of them after the point", start)
        return t.DecimalType(precision, scale)

    def _interval(self) -> t.DataType:
        """Read `interval day to second` or `year to month`, or a part of them. Without units: a calendar interval."""
        start = self._tokens[self._at][2]
        for units, kind in ((_YEAR_TO_MONTH, t.YearMonthIntervalType), (_DAY_TO_SECOND, t.DayTimeIntervalType)):
            first = self._took_one_of(units)
            if first is not None:
                last = self._took_one_of(units[first + 1 :]) if self._took("to") else -1
                if last is None:
                    self._refuse(f"a unit smaller than {units[first]}", start)
                return kind(first, first + 1 + last)
        return t.CalendarIntervalType()

    def _took_one_of(self, words: tuple[str, ...]) -> int | None:
        return next((at for at, word in enumerate(words) if self._took(word)), None)

    def _numbers(self, most: int) -> list[int]:
        self._need("(")
        numbers = [self._number()]
        while len(numbers) < most and self._took(","):
            numbers.append(self._number())
        self._need(")")
        return numbers

    def _number(self) -> int:
        if self._kind != "number":
            self._refuse("a number")
        return int(self._next())

    def _quoted_text(self) -> str:
        if self._kind != "text":
            self._refuse("a text in quotes")
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), self._next()[1:-1])

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _took(self, wanted: str) -> bool:
        """Read the next token if it is this sign or word. Return whether it was."""
        took = self._next_is(wanted)
        self._at += took
        return took

    def _next_is(self, wanted: str) -> bool:
        return self._kind in ("name", "sign") and self._tokens[self._at][1].lower() == wanted

    def _need(self, wanted: str) -> None:
        if not self._took(wanted):
            self._refuse(repr(wanted))

    def _refuse(self, expected: str, at: int | None = None) -> NoReturn:
        at = self._tokens[self._at][2] if at is None else at
        found = repr(self._text[at : at + 20]) if at < len(self._text) else "its end"
        raise OptionError(
            f"the schema {self._text!r} cannot be read: expected {expected} at character {at}, got {found}. "
            "Write it as in 'user string, amounts array<double>', or give a StructType."
        )
