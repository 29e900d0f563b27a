"""TaskEnvironment without Spark: what a thread sees is its own batch's."""

import pickle
import sys
import threading

import pytest
from pyspark import Accumulator, SparkFiles, TaskContext, cloudpickle
from pyspark import accumulators as spark_accumulators
from pyspark.accumulators import INT_ACCUMULATOR_PARAM
from pyspark.core.broadcast import _from_id

from millpond.errors import OptionError, UnavailableError
from millpond.spark.environment import task_environment as task_environment_module
from millpond.spark.environment.task_environment import TaskEnvironment, add_to_accumulators, copied_on_driver


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    """What a host changes for its whole process is changed back."""
    monkeypatch.setattr(spark_accumulators, "_accumulatorRegistry", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(SparkFiles, "_root_directory", None)
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    monkeypatch.setattr(task_environment_module, "_BROADCASTS", {})


class _Referring:
    """Stands for an object that refers to a broadcast: this is what PySpark pickles of one."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _from_id, (self.number,)


def test_batches_at_the_same_time_see_their_own_task_and_their_own_accumulators():
    pickled = cloudpickle.dumps(Accumulator(7, 0, INT_ACCUMULATOR_PARAM))
    spark_accumulators._accumulatorRegistry.clear()
    barrier, seen = threading.Barrier(2), {}

    def batch(partition):
        with TaskEnvironment(task={"_partitionId": partition}).entered() as arrival:
            accumulator = arrival.load(pickled)
            barrier.wait(20)
            accumulator += partition
            barrier.wait(20)
            seen[partition] = TaskContext.get().partitionId(), accumulator._value
            additions[partition] = arrival.additions()

    additions = {}
    threads = [threading.Thread(target=batch, args=(partition,)) for partition in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == {3: (3, 3), 4: (4, 4)}
    assert TaskContext.get().partitionId() is None, "a thread without a batch has no task"
    add_to_accumulators(additions[3])
    add_to_accumulators(additions[4])
    assert spark_accumulators._accumulatorRegistry[7]._value == 7


def test_an_accumulator_that_is_met_twice_is_one():
    pickled = cloudpickle.dumps(Accumulator(7, 0, INT_ACCUMULATOR_PARAM))
    with TaskEnvironment().entered() as arrival:
        assert arrival.load(pickled) is arrival.load(pickled)


def test_without_accumulators_nothing_goes_back():
    with TaskEnvironment().entered() as arrival:
        arrival.load(pickle.dumps([1, 2]))
        assert arrival.additions() == b""
    add_to_accumulators(b"")
    assert spark_accumulators._accumulatorRegistry == {}


def test_a_broadcast_is_read_once_from_its_file_and_let_go_with_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(pickle.dumps({"ada": 1}))
    referring = pickle.dumps([_Referring(5)])
    here = TaskEnvironment(broadcast_files={5: str(first)})
    with here.entered() as arrival:
        (broadcast,) = arrival.load(referring)
        assert broadcast.value == {"ada": 1}
    with here.entered() as arrival:
        assert arrival.load(referring)[0].value is broadcast.value
    first.unlink()
    second.write_bytes(pickle.dumps({"bob": 2}))
    with TaskEnvironment(broadcast_files={6: str(second)}).entered() as arrival:
        assert arrival.load(pickle.dumps(_Referring(6))).value == {"bob": 2}
    assert list(task_environment_module._BROADCASTS) == [str(second)]


def test_a_broadcast_whose_file_spark_encrypts_travels_as_its_value():
    with TaskEnvironment(broadcast_values={5: [1, 2]}).entered() as arrival:
        assert arrival.load(pickle.dumps(_Referring(5))).value == [1, 2]


def test_a_broadcast_that_the_task_does_not_have_is_named():
    with TaskEnvironment().entered() as arrival, pytest.raises(UnavailableError, match="broadcast 5 is not at hand"):
        arrival.load(pickle.dumps(_Referring(5)))


def test_modules_are_looked_for_where_the_worker_looks_first():
    sys.path[:] = own = ["/host", "/common", "/library"]
    with TaskEnvironment(sys_path=("/added", *own[1:]), files="/files").entered():
        assert sys.path == ["/added", "/common", "/library", "/host"]
        assert SparkFiles.getRootDirectory() == "/files"


class _Locked:
    def __init__(self):
        self.lock, self.limit = threading.Lock(), 3


def test_an_object_that_cannot_be_sent_is_refused_with_the_attribute_and_the_remedy():
    with pytest.raises(
        OptionError, match=r"_Locked cannot be sent to Spark's workers: .*; it holds self\.lock\..* init"
    ):
        copied_on_driver(_Locked())
