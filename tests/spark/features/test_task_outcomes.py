"""What an error in a task becomes on the driver."""

import pytest
from pyspark.errors import PythonException

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.features.task_outcomes import outcomes_of

pytestmark = pytest.mark.spark


def failing(spark, error):
    def fail(_):
        raise error
        yield

    return spark.range(1).mapInArrow(fail, "id long")


def test_a_job_that_succeeds_gives_its_rows(spark):
    assert [row.id for row in outcomes_of(spark.range(2), "a test")] == [0, 1]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnavailableError("the disk is full"), "a test the store failed.*the disk is full"),
        (CorruptionError("a wrong bit"), "a test what was stored cannot be read.*a wrong bit"),
    ],
    ids=["unavailable", "corrupt"],
)
def test_an_error_of_ours_is_one_of_its_kind(spark, error, told):
    with pytest.raises(type(error), match=f"(?s){told}"):
        outcomes_of(failing(spark, error), "a test")


def test_an_error_that_only_mentions_one_of_ours_stays_what_it_is(spark):
    with pytest.raises(PythonException):
        outcomes_of(failing(spark, RuntimeError("expected no CorruptionError here")), "a test")
