"""Random rows and random SQL expressions over them, for the comparison of the closure with Spark."""

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

COLUMNS = {
    "i": "int",
    "j": "int",
    "n": "long",
    "f": "float",
    "g": "float",
    "x": "double",
    "y": "double",
    "b": "boolean",
    "c": "boolean",
    "s": "string",
    "w": "string",
    "z": "binary",
    "d": "date",
    "e": "date",
    "t": "timestamp",
    "u": "timestamp",
    "p": "decimal(10,2)",
    "q": "decimal(38,18)",
    "r": "decimal(5,0)",
    "li": "array<int>",
    "lx": "array<double>",
    "ms": "map<string,double>",
    "mi": "map<int,string>",
}

_INTS = [0, 1, -1, 2, 3, 7, 10, -5, 100, 12345, 2**31 - 1, -(2**31)]
_LONGS = [*_INTS, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 10**12]
_DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.5, 0.1, 1e-5, 1e7, 123456.789, 1e18, 9.3e18, 1e300, -1e300, 5e-324]
_DOUBLES += [math.nan, math.inf, -math.inf, 2.0**63, 2147483647.9]
_TEXTS = [
    "",
    " ",
    "a",
    "ab",
    "Abc",
    "a,b,,c",
    "aXbXa",
    "  pad ",
    "é",
    "日本語",
    "STRASSE",
    "50%",
    "a_b",
    "it's",
    "back\\slash",
    "x\ny",
]
_NUMBERS = [
    "1",
    "-7",
    " 12 ",
    "+3",
    "1.5",
    "-0.25",
    "1e3",
    ".5",
    "5.",
    "1e",
    "abc",
    "",
    "99999999999",
    "1e400",
    "NaN",
    "inf",
]
_NUMBERS += ["-Infinity", "1d", "true", "N", "yes", "0", "2024-02-29", "2024-2-9", "2023-02-29", "2024-01-02 03:04:05"]
_NUMBERS += [
    "2024-01-02T03:04:05.123456Z",
    "2024-01-02 03:04:05.5+02:00",
    " 2024-01-01 ",
    "2024-01-02 25:00:00",
    "0x10",
    "1 2",
    "--1",
]
_DATES = [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(2023, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)]
_DATES += [dt.date(1969, 7, 20), dt.date(2000, 1, 31), dt.date(1900, 3, 1)]
_TIMES = [dt.datetime(day.year, day.month, day.day, 23, 59, 59, 999999, tzinfo=dt.UTC) for day in _DATES]
_TIMES += [dt.datetime(2024, 5, 6, 7, 8, 9, micros, tzinfo=dt.UTC) for micros in (0, 500000, 1, 123000)]
_TIMES += [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC)]

_DAYS = ["t", "DATE'2024-02-29'", "'2024-02-29'"]
_PATTERNS = ["'a%'", "'%b_'", "'%'", "'_\\\\_b'", "'%,%'"]
_SEPARATORS = ["'-'", "s"]
_PARTS_OF_DAYS = ["year", "month", "day", "quarter", "dayofweek", "weekday", "dayofyear", "weekofyear"]
_MOVES = ["date_add", "date_sub"]
_ENDS = ["1", "i", "-400"]
_PADDINGS = ["'xy'", "''", "'0'"]


def single(value: float) -> float:
    """`value` as 32 bits."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _decimal(random: Random, precision: int, scale: int) -> Decimal:
    digits = random.choice([1, 2, 3, precision // 2, precision, precision])
    value = random.choice([0, 1, 5, 10**digits - 1, random.randrange(10**digits), 5 * 10 ** (digits - 1)])
    return Decimal((random.randrange(2) if value else 0, tuple(map(int, str(value))), -scale))


def random_row(random: Random) -> dict[str, Any]:
    """A row of `COLUMNS`, with nulls and the values at which types end."""

    def double() -> float:
        return random.choice([random.choice(_DOUBLES), round(random.uniform(-1000, 1000), 2), random.uniform(-10, 10)])

    make: dict[str, Callable[[], Any]] = {
        "int": lambda: random.choice([random.choice(_INTS), random.randrange(-20, 20)]),
        "long": lambda: random.choice([random.choice(_LONGS), random.randrange(-(2**40), 2**40)]),
        "float": lambda: single(double()),
        "double": double,
        "boolean": lambda: random.random() < 0.5,
        "string": lambda: random.choice(_TEXTS),
        "binary": lambda: random.choice([b"", b"\x00\xff", b"abc"]),
        "date": lambda: random.choice(
            [random.choice(_DATES), dt.date(2020, 1, 1) + dt.timedelta(random.randrange(2000))]
        ),
        "timestamp": lambda: random.choice(_TIMES),
        "decimal(10,2)": lambda: _decimal(random, 10, 2),
        "decimal(38,18)": lambda: _decimal(random, 38, 18),
        "decimal(5,0)": lambda: _decimal(random, 5, 0),
        "array<int>": lambda: [random.choice([None, 1, 2, 3, -1]) for _ in range(random.randrange(4))],
        "array<double>": lambda: [
            random.choice([None, math.nan, 1.5, -0.0, 0.0, math.inf]) for _ in range(random.randrange(4))
        ],
        "map<string,double>": lambda: {key: random.choice([None, 1.5, 0.0]) for key in "abc" if random.random() < 0.5},
        "map<int,string>": lambda: {
            key: random.choice(["one", "two", None]) for key in range(3) if random.random() < 0.5
        },
    }
    row = {name: None if random.random() < 0.12 else make[type_]() for name, type_ in COLUMNS.items()}
    if row["w"] is not None:
        row["w"] = random.choice(_NUMBERS)
    return row


class Expressions:
    """Draws expressions of a wanted kind, at most `depth` operations deep."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def any(self, depth: int) -> str:
        """An expression of any kind."""
        kinds = [self.integer, self.integer, self.double, self.double, self.decimal, self.decimal]
        return self._pick(
            [*kinds, self.number, self.boolean, self.text, self.date, self.time, self.single, self.parts]
        )(depth)

    def _pick(self, choices: list[Any]) -> Any:
        return self._random.choice(choices)

    def _mixed(self, depth: int, kind: Callable[[int], str]) -> str:
        """What any kind may be made of: a choice between two of the kind."""
        a, b, d = kind(depth - 1), kind(depth - 1), depth - 1
        return self._pick(
            [
                lambda: f"CASE WHEN {self.boolean(d)} THEN {a} ELSE {b} END",
                lambda: f"CASE WHEN {self.boolean(d)} THEN {a} WHEN {self.boolean(d)} THEN {b} END",
                lambda: f"if({self.boolean(d)}, {a}, {b})",
                lambda: f"coalesce({a}, {b})",
                lambda: f"nullif({a}, {b})",
                lambda: f"greatest({a}, {b})",
                lambda: f"least({a}, {b}, {a})",
                lambda: f"nvl2({self.text(d)}, {a}, {b})",
                lambda: f"nvl({a}, {b})",
                lambda: f"CASE {self.integer(d)} WHEN 1 THEN {a} WHEN {self.integer(d)} THEN {b} ELSE {a} END",
                lambda: f"coalesce(NULL, {a})",
            ]
        )()

    def _draw(self, depth: int, leaves: list[str], kind: Callable[[int], str], made: list[Callable[[], str]]) -> str:
        if depth <= 0 or self._random.random() < 0.1:
            return str(self._pick(leaves))
        if self._random.random() < 0.15:
            return self._mixed(depth, kind)
        return str(self._pick(made)())

    def integer(self, depth: int) -> str:
        """An int or long."""
        d = depth - 1
        leaves = [
            "i",
            "j",
            "n",
            "i",
            "0",
            "1",
            "-3",
            "7",
            "2147483647",
            "3000000000",
            "5L",
            "CAST(NULL AS INT)",
            "-2147483648",
        ]
        return self._draw(
            depth,
            leaves,
            self.integer,
            [
                lambda: f"({self.integer(d)} {self._pick(['+', '-', '*', '%'])} {self.integer(d)})",
                lambda: f"({self.integer(d)} {self._pick(['+', '-', '*', '%'])} {self.integer(d)})",
                lambda: f"({self.integer(d)} DIV {self.integer(d)})",
                lambda: f"(- {self.integer(d)})",
                lambda: f"abs({self.integer(d)})",
                lambda: f"pmod({self.integer(d)}, {self.integer(d)})",
                lambda: f"floor({self.number(d)})",
                lambda: f"ceil({self.number(d)})",
                lambda: f"CAST({self.number(d)} AS {self._pick(['INT', 'BIGINT'])})",
                lambda: f"CAST({self._pick(['w', self.text(d), self.boolean(d)])} AS {self._pick(['INT', 'BIGINT'])})",
                lambda: f"CAST({self.time(d)} AS BIGINT)",
                lambda: f"round({self.integer(d)}, 1)",
                lambda: f"length({self._pick([self.text(d), 'z'])})",
                lambda: f"instr({self.text(d)}, {self.text(d)})",
                lambda: f"locate({self.text(d)}, {self.text(d)})",
                lambda: f"{self._pick(_PARTS_OF_DAYS)}({self._pick([self.date, self.time])(d)})",
                lambda: f"{self._pick(['hour', 'minute', 'second'])}({self._pick([self.date, self.time])(d)})",
                lambda: f"{self._pick(['unix_seconds', 'unix_millis', 'unix_micros'])}({self.time(d)})",
                lambda: f"date_diff({self.date(d)}, {self._pick([self.date, self.time])(d)})",
                lambda: f"unix_date({self.date(d)})",
                lambda: f"size({self._pick(['li', 'lx', 'ms', 'mi'])})",
                lambda: f"li[CAST({self.integer(d)} AS INT)]",
                lambda: "li[0]",
                lambda: f"element_at(li, {self._pick(['1', '-1', '2', 'j'])})",
                lambda: f"array_{self._pick(['min', 'max'])}(li)",
                lambda: f"length(mi[{self._pick(['1', 'i'])}])",
            ],
        )

    def double(self, depth: int) -> str:
        """A double, equal to the bit."""
        d = depth - 1
        return self._draw(
            depth,
            ["x", "y", "x", "1.5D", "0D", "-1e3", "CAST('NaN' AS DOUBLE)", "1e-3"],
            self.double,
            [
                lambda: f"({self.double(d)} {self._pick(['+', '-', '*', '/', '%'])} {self.double(d)})",
                lambda: f"({self.number(d)} {self._pick(['+', '-', '*', '/', '%'])} {self.double(d)})",
                lambda: f"({self.integer(d)} / {self.integer(d)})",
                lambda: f"({self.single(d)} / {self.single(d)})",
                lambda: f"(- {self.double(d)})",
                lambda: f"abs({self.double(d)})",
                lambda: f"sqrt({self.number(d)})",
                lambda: f"sign({self.number(d)})",
                lambda: f"round({self.double(d)}, {self._pick([0, 1, 2, 5])})",
                lambda: f"bround({self.double(d)}, {self._pick([0, 2])})",
                lambda: f"pmod({self.double(d)}, {self.double(d)})",
                lambda: f"nanvl({self.double(d)}, {self.double(d)})",
                lambda: f"CAST({self.number(d)} AS DOUBLE)",
                lambda: f"CAST({self._pick(['w', self.text(d), self.boolean(d), self.time(d)])} AS DOUBLE)",
                lambda: f"ms[{self._pick(['s', self.text(d)])}]",
                lambda: "ms['a']",
                lambda: f"element_at(ms, {self.text(d)})",
                lambda: "lx[1]",
                lambda: f"array_{self._pick(['min', 'max'])}(lx)",
            ],
        )

    def single(self, depth: int) -> str:
        """A float."""
        d = depth - 1
        return self._draw(
            depth,
            ["f", "g", "1.5F"],
            self.single,
            [
                lambda: f"({self.single(d)} {self._pick(['+', '-', '*', '%'])} {self.single(d)})",
                lambda: f"(- {self.single(d)})",
                lambda: f"abs({self.single(d)})",
                lambda: f"round({self.single(d)}, 1)",
                lambda: f"CAST({self._pick([self.double(d), 'i', 'w'])} AS FLOAT)",
            ],
        )

    def decimal(self, depth: int) -> str:
        """A decimal."""
        d = depth - 1
        return self._draw(
            depth,
            ["p", "q", "r", "1.5", "0.1", "-20.00", "p"],
            self.decimal,
            [
                lambda: f"({self.decimal(d)} {self._pick(['+', '-', '*', '/', '%'])} {self.decimal(d)})",
                lambda: (
                    f"({self.decimal(d)} {self._pick(['+', '-', '*', '/', '%'])} {self._pick(['i', 'n', '3', '100'])})"
                ),
                lambda: f"({self._pick(['i', 'n', '3'])} {self._pick(['+', '-', '*', '/', '%'])} {self.decimal(d)})",
                lambda: f"(- {self.decimal(d)})",
                lambda: f"abs({self.decimal(d)})",
                lambda: f"round({self.decimal(d)}, {self._pick([0, 1, 3])})",
                lambda: f"bround({self.decimal(d)}, {self._pick([0, 1])})",
                lambda: (
                    f"CAST({self._pick([self.integer(d), self.decimal(d), 'w', '(x % 1e6)', '(f % 1000F)'])}"
                    f" AS DECIMAL({self._pick(['10,2', '38,10', '5,0'])}))"
                ),
            ],
        )

    def number(self, depth: int) -> str:
        """Any number."""
        return str(self._pick([self.integer, self.double, self.decimal, self.single])(depth))

    def boolean(self, depth: int) -> str:
        """A condition."""
        d = depth - 1
        operator = self._pick(["=", "<>", "<", "<=", ">", ">=", "==", "!=", "<=>"])
        kind = self._pick([self.integer, self.double, self.single, self.text, self.date, self.time, self.boolean])
        return self._draw(
            depth,
            ["b", "c", "true", "false", "CAST(NULL AS BOOLEAN)"],
            self.boolean,
            [
                lambda: f"({kind(d)} {operator} {kind(d)})",
                lambda: f"({kind(d)} {operator} {kind(d)})",
                lambda: f"({self.integer(d)} {operator} {self.double(d)})",
                lambda: f"(p {operator} {self._pick(['r', 'i', 'n', '1', '2.5', 'x', 'f'])})",
                lambda: f"(d {operator} {self._pick(_DAYS)})",
                lambda: f"({self.boolean(d)} AND {self.boolean(d)})",
                lambda: f"({self.boolean(d)} OR {self.boolean(d)})",
                lambda: f"(NOT {self.boolean(d)})",
                lambda: f"({kind(d)} IS NULL)",
                lambda: f"({kind(d)} IS NOT NULL)",
                lambda: f"({self.boolean(d)} IS {self._pick(['', 'NOT '])}{self._pick(['TRUE', 'FALSE'])})",
                lambda: f"({kind(d)} {self._pick(['', 'NOT '])}IN ({kind(d)}, {kind(d)}))",
                lambda: f"({kind(d)} IN ({kind(d)}, NULL))",
                lambda: f"({kind(d)} {self._pick(['', 'NOT '])}BETWEEN {kind(d)} AND {kind(d)})",
                lambda: f"({self.text(d)} {self._pick(['', 'NOT '])}LIKE {self._pick(_PATTERNS)})",
                lambda: f"CAST({self._pick([self.number(d), 'w'])} AS BOOLEAN)",
                lambda: f"isnan({self.double(d)})",
                lambda: f"{self._pick(['contains', 'startswith', 'endswith'])}({self.text(d)}, {self.text(d)})",
                lambda: f"array_contains(li, {self._pick(['1', 'j'])})",
                lambda: f"array_contains(lx, {self._pick(['0D', 'x'])})",
                lambda: f"map_contains_key(ms, {self.text(d)})",
            ],
        )

    def text(self, depth: int) -> str:
        """A string."""
        d = depth - 1
        small = str(self._random.randrange(-4, 6))
        return self._draw(
            depth,
            ["s", "w", "s", "'a'", "'b,'", "''", "'it\\'s'", "'%'"],
            self.text,
            [
                lambda: f"{self._pick(['upper', 'lower', 'trim', 'ltrim', 'rtrim', 'reverse'])}({self.text(d)})",
                lambda: f"concat({self.text(d)}, {self._pick([self.text, self.integer, self.boolean, self.date])(d)})",
                lambda: f"({self.text(d)} || {self.text(d)})",
                lambda: f"concat_ws({self._pick(_SEPARATORS)}, {self.text(d)}, {self.integer(d)}, {self.text(d)})",
                lambda: f"substring({self.text(d)}, {self._pick([small, 'i'])}, {self._pick(['2', 'j', '100'])})",
                lambda: f"substring({self.text(d)}, {small})",
                lambda: f"{self._pick(['left', 'right'])}({self.text(d)}, {self._pick([small, 'i'])})",
                lambda: f"replace({self.text(d)}, {self.text(d)}, {self.text(d)})",
                lambda: f"split_part({self.text(d)}, {self.text(d)}, {self._pick(['1', '2', '-1', 'i'])})",
                lambda: f"split({self.text(d)}, ',')[{self._pick(['0', '1', 'i'])}]",
                lambda: (
                    f"{self._pick(['lpad', 'rpad'])}({self.text(d)}, {self._pick([0, 2, 5])}, {self._pick(_PADDINGS)})"
                ),
                lambda: f"repeat({self.text(d)}, {self._pick([0, 1, 3])})",
                lambda: (
                    f"CAST({self._pick([self.integer, self.decimal, self.boolean, self.date, self.time])(d)} AS STRING)"
                ),
                lambda: f"CAST({self._pick(['i', 'round(y % 1000D, 2)'])} AS STRING)",
                lambda: f"mi[{self._pick(['1', 'i', 'j'])}]",
            ],
        )

    def parts(self, depth: int) -> str:
        """An array."""
        return str(
            self._pick([lambda: "li", lambda: f"split({self.text(depth - 1)}, ',')", lambda: "coalesce(li, li)"])()
        )

    def date(self, depth: int) -> str:
        """A date."""
        d = depth - 1
        return self._draw(
            depth,
            ["d", "e", "d", "DATE'2024-03-31'"],
            self.date,
            [
                lambda: f"{self._pick(_MOVES)}({self._pick([self.date, self.time])(d)}, {self._pick(_ENDS)})",
                lambda: f"add_months({self.date(d)}, {self._pick(['1', '-13', 'i'])})",
                lambda: f"last_day({self.date(d)})",
                lambda: f"trunc({self.date(d)}, '{self._pick(['year', 'quarter', 'MM', 'week'])}')",
                lambda: f"CAST({self._pick([self.time(d), 'w'])} AS DATE)",
                lambda: f"to_date({self._pick([self.time(d), 'w'])})",
                lambda: f"date_from_unix_date({self._pick(['i', '100'])})",
            ],
        )

    def time(self, depth: int) -> str:
        """A timestamp."""
        d = depth - 1
        units = ["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"]
        return self._draw(
            depth,
            ["t", "u", "t", "TIMESTAMP'2024-01-02 03:04:05Z'"],
            self.time,
            [
                lambda: f"date_trunc('{self._pick(units)}', {self._pick([self.date, self.time])(d)})",
                lambda: f"CAST({self._pick([self.date(d), 'w'])} AS TIMESTAMP)",
                lambda: f"timestamp_{self._pick(['seconds', 'millis', 'micros'])}({self.integer(d)})",
            ],
        )

    def transcendental(self, depth: int) -> str:
        """A function that may differ in the last digit, of an argument that does not."""
        name = self._pick(["exp", "ln", "log10", "log2", "log1p", "expm1", "sin", "cos", "tan", "atan", "cbrt"])
        small = f"({self.double(depth)} % 20D)"
        return str(
            self._pick(
                [
                    lambda: f"{name}({self._pick([small, self.number(depth)])})",
                    lambda: f"pow({small}, {self._pick([small, self.double(0)])})",
                    lambda: f"log({small}, {small})",
                ]
            )()
        )
