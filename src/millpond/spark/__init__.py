"""Everything that imports pyspark."""

from millpond.spark.arrow_processor import ArrowStatefulProcessor
from millpond.spark.dead_letters import split_dead_letters
from millpond.spark.features.stream import stream
from millpond.spark.keyed import KeyedData, keyed
from millpond.spark.lookup_join import lookup_join
from millpond.spark.lookup_scan import SparkScan
from millpond.spark.operator_metrics import KeyedMetrics
from millpond.spark.operator_spec import StateConfig
from millpond.spark.processor_harness import ProcessorHarness, ProcessorSnapshot
from millpond.spark.read_state import read_state
from millpond.spark.savepoints import savepoint
from millpond.spark.session import session
from millpond.spark.upload import upload_batch

__all__ = [
    "ArrowStatefulProcessor",
    "KeyedData",
    "KeyedMetrics",
    "ProcessorHarness",
    "ProcessorSnapshot",
    "SparkScan",
    "StateConfig",
    "keyed",
    "lookup_join",
    "read_state",
    "savepoint",
    "session",
    "split_dead_letters",
    "stream",
    "upload_batch",
]
