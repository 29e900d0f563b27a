"""The arguments of the methods of `keyed` as one value. Checks that need no Spark session are made here."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import GroupedData
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType, _parse_datatype_string

from millpond.errors import OptionError
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.operator.processors import check_processor
from millpond.spark.spec.operator import StateConfig


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """One operator, as a caller asks for it. `KeyedData.transformWithState` explains the arguments.

    Attributes:
        form: how user code gets rows: "rows", "pandas" or "arrow".

    Raises:
        OptionError: an argument has an unknown value, or two arguments exclude each other.
    """

    form: str
    processor: StatefulProcessor | ArrowStatefulProcessor
    output: StructType | str
    output_mode: str
    time_mode: str
    initial: GroupedData | None
    event_time_column: str
    late: str
    on_error: str = "fail"
    config: StateConfig | None
    savepoint: str | None

    def __post_init__(self) -> None:
        check_processor(self.form, self.processor)
        check_choice("timeMode", self.time_mode, ("None", "EventTime", "ProcessingTime"))
        check_choice("outputMode", self.output_mode, ("Append", "Update"))
        check_choice("late", self.late, ("drop", "keep"))
        check_choice("on_error", self.on_error, ("fail", "dead-letter"))
        if not isinstance(self.config, StateConfig | None):
            raise OptionError(f"state={self.config!r}: expected a StateConfig, as in StateConfig(backend='rocksdb').")
        if self.initial is not None and self.savepoint is not None:
            raise OptionError("a new query begins with an initialState or with a savepoint; give one of them.")

    @property
    def sets_aside(self) -> bool:
        """Whether a call that fails becomes a dead letter."""
        return self.on_error.lower() == "dead-letter"

    @property
    def keeps_late(self) -> bool:
        """Whether rows later than the watermark are kept."""
        return self.late.lower() == "keep"

    @property
    def in_event_time(self) -> bool:
        """Whether timers wait for the watermark."""
        return self.time_mode.lower() == "eventtime"

    def output_schema(self) -> StructType:
        """Return the schema of what the processor yields. DDL text needs a running Spark to parse it."""
        schema = _parse_datatype_string(self.output) if isinstance(self.output, str) else self.output
        if not isinstance(schema, StructType):
            raise OptionError(f"outputStructType must be a StructType or its DDL text, got {self.output!r}.")
        return schema


def check_choice(option: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise an OptionError unless the value is one of the known ones, in any letter case."""
    if str(value).lower() not in [choice.lower() for choice in known]:
        raise OptionError(f"{option}={value!r}: expected one of {', '.join(map(repr, known))}.")
