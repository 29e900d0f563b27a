"""Parsing: SQL text to sqlglot's tree, with the place of every fault.

The dialect is Spark's without its functions. sqlglot would rewrite each call into a form of its own
(``year(x)`` into ``Year(TsOrDsToDate(x))``), but the checker needs the names as written.
Only this module needs sqlglot when it is imported; `check` imports it at use.
"""

from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from millpond.features.derivations.typed import Faults

_KEPT = ("CAST", "TRY_CAST")
_SHOWN = 60


_SPARK_PARSER: Any = Spark.Parser


class _Calls(Spark):
    """Spark's SQL in which every function but CAST is a plain call."""

    class Parser(_SPARK_PARSER):  # type: ignore[misc]
        """Spark's parser with no functions defined."""

        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012 - sqlglot's way of configuring a dialect
        FUNCTION_PARSERS = {name: _SPARK_PARSER.FUNCTION_PARSERS[name] for name in _KEPT}  # noqa: RUF012
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012


def parse(text: str) -> exp.Expression:
    """Parse one expression into its tree.

    Raises:
        Faults: `text` is not one expression of SQL.
    """
    try:
        trees = sqlglot.parse(text, read=_Calls)
    except ParseError as error:
        first = error.errors[0]
        place = f"line {first['line']}, column {max(1, first['col'])}"
        near = f"{first['start_context'] or ''}{first['highlight'] or ''}"[-_SHOWN:]
        raise Faults([f"{place}: {first['description']} (after {near!r})"]) from None
    except TokenError as error:
        raise Faults([f"not SQL: {error}"]) from None
    except RecursionError:
        raise Faults(["too deeply nested"]) from None
    if len(trees) != 1 or trees[0] is None:
        raise Faults([f"expected one expression, found {len([tree for tree in trees if tree])}"])
    tree: exp.Expression = trees[0]  # type: ignore[assignment]
    return tree


def names_in(tree: exp.Expression) -> set[str]:
    """Return the columns that the expression names."""
    return {column.name for column in tree.find_all(exp.Column)}


def fragment(node: exp.Expression) -> str:
    """Return the part of the text that `node` came from, shortened."""
    text = node.sql(dialect=_Calls)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def place(node: exp.Expression) -> str:
    """Return where `node` is: its line and column where they are known, and its text."""
    begin = (
        min((it.meta["line"], it.meta["col"] - len(str(it.name)) + 1) for it in node.walk() if "line" in it.meta)
        if any("line" in it.meta for it in node.walk())
        else None
    )
    at = f"line {begin[0]}, column {max(1, begin[1])}: " if begin else ""
    return f"{at}{fragment(node)}"
