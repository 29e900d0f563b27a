"""What a user declares: a name and an expression."""

from dataclasses import dataclass

from millpond.errors import OptionError


@dataclass(frozen=True, slots=True)
class Derivation:
    """A value that is computed from others of the same row.

    Args:
        name: the name of the value. No column of the row may have it.
        expression: SQL over the columns' names, in the subset that the reference lists.

    The expression is parsed and checked where the columns' types are known: when a GroupBy or Join is made with it.

    Raises:
        OptionError: the name or the expression is empty.

    >>> Derivation("price_ratio", "price_sum_1d / price_sum_7d")
    Derivation(name='price_ratio', expression='price_sum_1d / price_sum_7d')
    """

    name: str
    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise OptionError(f"a derivation's name must be a text of at least one letter, got {self.name!r}")
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise OptionError(f"derivation {self.name!r}: the expression must be SQL, got {self.expression!r}")
