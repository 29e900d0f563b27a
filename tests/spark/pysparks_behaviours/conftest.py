"""An operator, a stream of files, and settings of the session for one test."""

import pytest

from millpond.spark.environment.versions import start_state_stores
from tests.spark.pysparks_behaviours.operators import ALL, Operator
from tests.spark.streams import FileStream


@pytest.fixture(params=ALL, ids="-".join)
def operator(request):
    """PySpark's operator and ours, in both forms."""
    return Operator(*request.param)


@pytest.fixture(autouse=True)
def state_stores(spark):
    """Starts what PySpark's own operator lacks in the first batch of a session, before 4.3."""
    start_state_stores(spark)


@pytest.fixture
def stream(spark, tmp_path):
    return FileStream(spark, tmp_path)


@pytest.fixture
def conf(spark):
    """Sets settings of the session for one test."""
    before = {}

    def set_all(**settings):
        for name, value in settings.items():
            key = name.replace("__", ".")
            before.setdefault(key, spark.conf.get(key))
            spark.conf.set(key, value)

    yield set_all
    for key, value in before.items():
        spark.conf.set(key, value)
