"""Executors that share a cache, and end with the test."""

import pytest

from millpond.spark.lookup.shared.directory import Directory
from tests.spark.lookup.shared.executors import Clock, Executor


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def directory(clock):
    directory = Directory("127.0.0.1", "127.0.0.1", clock)
    yield directory
    directory.close()


@pytest.fixture
def executors(directory, clock):
    """Makes executors that know each other."""
    made = []

    def make(find, names=("one", "two", "three"), **given):
        new = [Executor(name, directory, find, clock, **given) for name in names]
        made.extend(new)
        for executor in made:
            executor.shared.members.beat()
        return new

    yield make
    for executor in made:
        executor.close()
