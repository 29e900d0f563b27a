"""A checked expression: its type, its text for Spark, and its code in Python.

`check` turns parsed SQL into `Typed` nodes, bottom up. A node has two forms. In the text for Spark every
conversion is explicit, so that the session's settings decide nothing. The Python source has one statement per
operation, so that a call walks no tree. Statements are used, not nested calls, because CASE, COALESCE, AND and OR
evaluate only what they need, and because a test for null costs 10 ns inline and 60 ns as a call.

An operation that fails (a division by zero, an overflow, a text that is not a number) is null, and puts the reason
into the variable ``why``. Its text for Spark uses the ``try_`` form, which is null in the same cases.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from millpond.features.types import DataType


class Code:
    """Python source under construction, and the constants it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._depth = 0
        self._variables = 0
        self._fragments: list[str] = []

    def line(self, text: str) -> None:
        """Append one statement."""
        self.lines.append(" " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write `header`, and indent what is written inside the ``with`` block."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def at(self, fragment: str) -> Iterator[None]:
        """Set the part of the derivation that is being written, which the reasons of its failures name."""
        self._fragments.append(fragment)
        yield
        self._fragments.pop()

    def variable(self) -> str:
        """Return the name of a new local variable."""
        self._variables += 1
        return f"v{self._variables}"

    def constant(self, value: Any) -> str:
        """Return a name for `value` in the source."""
        if id(value) not in self._names:
            self._names[id(value)] = f"k{len(self.constants)}"
            self.constants[self._names[id(value)]] = value  # also keeps the value alive, so that its id stays unique
        return self._names[id(value)]

    def fail(self, because: str) -> None:
        """Write a statement that notes why the operation being written is null."""
        place = f"{self._fragments[-1]}: " if self._fragments else ""
        self.line(f"why = {place + because!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """A checked expression.

    ``emit`` writes its statements and returns the name of the variable that then has its value. ``literal`` marks a
    constant in the text, whose value is ``value``: some arguments must be constants.
    """

    type: DataType
    sql: str
    emit: Callable[[Code], str]
    nullable: bool = True
    literal: bool = False
    value: Any = None


@dataclass(frozen=True, slots=True)
class Failure:
    """When an operation fails, and why: `unless` is tested before it runs, `valid` after (``{v}`` is the result)."""

    because: str
    unless: str = ""
    valid: str = ""


MAY_BE_NONE = "{v} is not None"


def strict(
    type_: DataType,
    sql: str,
    args: Sequence[Typed],
    python: str | Callable[..., Any],
    *,
    failure: Failure | None = None,
    nullable: bool = False,
    extra: Sequence[Any] = (),
) -> Typed:
    """Return an operation that is null when one of its arguments is.

    Args:
        type_: the type of the result.
        sql: the text for Spark; ``{0}`` stands for the first argument.
        args: the arguments.
        python: a Python expression, with ``{0}`` for the first argument; or a function of the arguments.
        failure: when it fails, besides null arguments.
        nullable: whether it can be null without a failure, although no argument is.
        extra: further constants that `python` takes after the arguments.
    """

    def emit(code: Code) -> str:
        names = [arg.emit(code) for arg in args]
        values = [*names, *(code.constant(it) for it in extra)]
        result = code.variable()
        expression = (
            python.format(*values) if isinstance(python, str) else f"{code.constant(python)}({','.join(values)})"
        )
        null = " or ".join(f"{name} is None" for name, arg in zip(names, args, strict=True) if arg.nullable)
        if failure is None:
            code.line(f"{result} = None if {null} else {expression}" if null else f"{result} = {expression}")
            return result
        keyword = "if"
        if null:
            with code.block(f"if {null}:"):
                code.line(f"{result} = None")
            keyword = "elif"
        if failure.unless:
            with code.block(f"{keyword} {failure.unless.format(*values)}:"):
                code.line(f"{result} = None")
                code.fail(failure.because)
            keyword = "elif"
        with code.block("else:") if keyword == "elif" else nullcontext():
            code.line(f"{result} = {expression}")
            if failure.valid:
                with code.block(f"if not ({failure.valid.format(v=result)}):"):
                    code.line(f"{result} = None")
                    code.fail(failure.because)
        return result

    can_be_null = nullable or failure is not None or any(arg.nullable for arg in args)
    return Typed(type_, sql.format(*(arg.sql for arg in args)), emit, can_be_null)


def literal(value: Any, type_: DataType, sql: str) -> Typed:
    """Return a constant; a `value` of None is NULL."""

    def emit(code: Code) -> str:
        return code.constant(value) if value is not None else "None"

    return Typed(type_, sql, emit, value is None, literal=True, value=value)


def text_literal(value: str) -> str:
    r"""Return `value` as a string literal of Spark SQL.

    >>> print(text_literal("it's 5\\"))
    'it\'s 5\\'
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


@dataclass(slots=True)
class Faults(Exception):  # noqa: N818 - it carries several
    """Everything that could be found wrong with one expression."""

    found: list[str] = field(default_factory=list)
