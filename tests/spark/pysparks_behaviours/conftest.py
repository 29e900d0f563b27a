"""An operator, a stream of files, and settings of the session for one test."""

import pytest

from tests.spark.pysparks_behaviours.operators import ALL, Operator
from tests.spark.streams import FileStream


@pytest.fixture(params=ALL, ids="-".join)
def operator(request):
    """PySpark's operator and ours, in both forms."""
    return Operator(*request.param)


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
