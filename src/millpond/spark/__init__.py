"""Everything that imports pyspark."""

from millpond.errors import MissingDependencyError

try:
    import pyspark
except ImportError as error:
    raise MissingDependencyError(
        'millpond.spark needs PySpark, which is not installed. Run: pip install "millpond[spark]"'
    ) from error

if pyspark.__version__.startswith(("3.", "4.0.")):  # without `transformWithState` on rows
    raise MissingDependencyError(
        f'millpond.spark needs PySpark 4.1 or later, found {pyspark.__version__}. Run: pip install "millpond[spark]"'
    )

from millpond.spark.environment.session import session
from millpond.spark.features.backfill import backfill
from millpond.spark.features.check import check
from millpond.spark.features.stream import stream
from millpond.spark.features.training_set import training_set
from millpond.spark.features.upload import upload
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.forms.dead_letters import split_dead_letters
from millpond.spark.inspect.read_state import read_state
from millpond.spark.inspect.savepoints import savepoint
from millpond.spark.lookup.join import lookup_join
from millpond.spark.lookup.scan import SparkScan
from millpond.spark.migration.export_state import export_state
from millpond.spark.migration.import_state import import_state
from millpond.spark.operator.keyed import KeyedData, keyed
from millpond.spark.spec.metrics import KeyedMetrics
from millpond.spark.spec.operator import StateConfig
from millpond.spark.testing.processor_harness import ProcessorHarness, ProcessorSnapshot

__all__ = [
    "ArrowStatefulProcessor",
    "KeyedData",
    "KeyedMetrics",
    "ProcessorHarness",
    "ProcessorSnapshot",
    "SparkScan",
    "StateConfig",
    "backfill",
    "check",
    "export_state",
    "import_state",
    "keyed",
    "lookup_join",
    "read_state",
    "savepoint",
    "session",
    "split_dead_letters",
    "stream",
    "training_set",
    "upload",
]
