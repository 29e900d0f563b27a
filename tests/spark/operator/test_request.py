"""What is asked of `keyed` is checked before Spark is asked for anything."""

import pytest
from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import OptionError
from millpond.spark.operator.request import OperatorRequest


class Silent(StatefulProcessor):
    """Does nothing."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        return iter(())

    def close(self):
        pass


def asked(**changes):
    given = {
        "form": "rows",
        "processor": Silent(),
        "output": "user string",
        "output_mode": "Append",
        "time_mode": "None",
        "initial": None,
        "event_time_column": "",
        "late": "drop",
        "config": None,
        "savepoint": None,
    }
    return OperatorRequest(**(given | changes))


@pytest.mark.parametrize(("late", "kept"), [("drop", False), ("keep", True), ("Keep", True), ("DROP", False)])
def test_late_rows_are_kept_however_the_word_is_written(late, kept):
    assert asked(late=late).keeps_late is kept


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"late": "save"}, "late='save': expected one of 'drop', 'keep'"),
        ({"time_mode": "Event"}, "timeMode='Event': expected one of 'None', 'EventTime', 'ProcessingTime'"),
        ({"output_mode": "Complete"}, "outputMode='Complete': expected one of 'Append', 'Update'"),
        ({"on_error": "ignore"}, "on_error='ignore': expected one of 'fail', 'dead-letter'"),
        ({"config": "rocksdb"}, r"state='rocksdb': expected a StateConfig, as in StateConfig\(backend='rocksdb'\)"),
        ({"initial": object(), "savepoint": "/place"}, "with an initialState or with a savepoint; give one of them"),
        ({"processor": Silent}, r"got the class Silent and not an instance of it. Write Silent\(\)"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes, says):
    with pytest.raises(OptionError, match=says):
        asked(**changes)


def test_modes_are_read_in_any_case():
    assert asked(time_mode="eventTIME", on_error="Dead-Letter").in_event_time
    assert asked(on_error="Dead-Letter").sets_aside
    assert not asked().sets_aside


def test_an_output_that_is_no_list_of_fields_is_refused():
    with pytest.raises(OptionError, match="must be a StructType or its DDL text, got 7"):
        asked(output=7).output_schema()
