"""Derivations: values computed from other values of the same row, in a subset of SQL.

A `Derivation` is a name and an expression. `CompiledDerivations` checks a list of them against the columns'
types. It makes one Python function of them for the fetcher, and texts for Spark. Both give the same values.

The steps for an expression: `grammar` parses it. `check` types it, node by node, with the operations of `operators`,
`casts` and the families of `functions`. Each node (`typed`) knows its form in Python and in Spark SQL.
`compiled` assembles the Python.
"""

from millpond.features.derivations.compiled import CompiledDerivations
from millpond.features.derivations.definition import Derivation

__all__ = ["CompiledDerivations", "Derivation"]
