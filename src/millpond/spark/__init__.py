"""Everything that imports pyspark.

Each public name is imported at its first use. A Python worker of Spark imports this package for every query that it
begins. It then loads the operator only, and not the features, lookups and tools.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millpond.errors import MissingDependencyError

try:
    import pyspark
except ImportError as error:
    raise MissingDependencyError(
        'millpond.spark needs PySpark, which is not installed. Run: pip install "millpond[spark]"'
    ) from error

if pyspark.__version__.startswith(("3.", "4.0.")):  # these have no `transformWithState` on rows
    raise MissingDependencyError(
        f'millpond.spark needs PySpark 4.1 or later, found {pyspark.__version__}. Run: pip install "millpond[spark]"'
    )

if TYPE_CHECKING:
    from millpond.spark.environment.session import session
    from millpond.spark.features.backfill import backfill
    from millpond.spark.features.check import check
    from millpond.spark.features.stream import stream
    from millpond.spark.features.training_set import training_set
    from millpond.spark.features.upload import upload
    from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
    from millpond.spark.forms.dead_letters import split_dead_letters
    from millpond.spark.inspect.driver_page import DriverPage, ui
    from millpond.spark.inspect.read_state import read_state
    from millpond.spark.inspect.savepoints import savepoint
    from millpond.spark.lookup.invalidations import invalidate_from
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
    "DriverPage",
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
    "invalidate_from",
    "keyed",
    "lookup_join",
    "read_state",
    "savepoint",
    "session",
    "split_dead_letters",
    "stream",
    "training_set",
    "ui",
    "upload",
]

_HOMES = {
    "ArrowStatefulProcessor": "forms.arrow_processor",
    "DriverPage": "inspect.driver_page",
    "KeyedData": "operator.keyed",
    "KeyedMetrics": "spec.metrics",
    "ProcessorHarness": "testing.processor_harness",
    "ProcessorSnapshot": "testing.processor_harness",
    "SparkScan": "lookup.scan",
    "StateConfig": "spec.operator",
    "backfill": "features.backfill",
    "check": "features.check",
    "export_state": "migration.export_state",
    "import_state": "migration.import_state",
    "invalidate_from": "lookup.invalidations",
    "keyed": "operator.keyed",
    "lookup_join": "lookup.join",
    "read_state": "inspect.read_state",
    "savepoint": "inspect.savepoints",
    "session": "environment.session",
    "split_dead_letters": "forms.dead_letters",
    "stream": "features.stream",
    "training_set": "features.training_set",
    "ui": "inspect.driver_page",
    "upload": "features.upload",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
