"""Everything that imports pyspark."""

from millpond.spark.keyed import KeyedData, keyed
from millpond.spark.lookup_join import lookup_join
from millpond.spark.operator_spec import StateConfig
from millpond.spark.session import session

__all__ = ["KeyedData", "StateConfig", "keyed", "lookup_join", "session"]
