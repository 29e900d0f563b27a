"""A state host that hangs is replaced, and one that has done a batch job lets go of its state."""

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed
from millpond.spark.environment.folders import user_folder


class Count(StatefulProcessor):
    """Counts rows by key; the first call of all stops its own process, if there is a place to remember that."""

    def __init__(self, marker=None):
        self._marker = marker

    def init(self, handle):
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        if self._marker is not None and not Path(self._marker).exists():
            Path(self._marker).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        n = (self._count.get() or (0,))[0] + sum(1 for _ in rows)
        self._count.update((n,))
        yield Row(key=key[0], n=n)

    def close(self):
        pass


def _counted(spark, processor, config):
    df = spark.range(20).selectExpr("id % 5 AS key")
    counted = keyed(df, "key").transformWithState(processor, "key long, n long", "Update", "None", state=config)
    return sorted(tuple(row) for row in counted.collect())


ALL = [(key, 4) for key in range(5)]


def test_a_host_that_hangs_fails_its_task_with_an_error_that_says_so_and_the_next_one_has_another(spark, tmp_path):
    config, processor = StateConfig(host_timeout=timedelta(seconds=5)), Count(str(tmp_path / "stopped"))
    with pytest.raises(Exception, match=r"no sign for 0:00:05, StateConfig\(host_timeout"):
        _counted(spark, processor, config)
    assert _counted(spark, processor, config) == ALL


def _backends():
    return set(user_folder().glob("state-*/backend-*"))


def test_a_batch_jobs_state_is_gone_with_its_last_task(spark):
    before = _backends()
    assert _counted(spark, Count(), StateConfig(backend="rocksdb")) == ALL
    # A host drops a shard when its worker has all of it, so the last one may still be at it.
    pause = threading.Event()
    assert any(_backends() <= before or pause.wait(0.1) for _ in range(100))
