"""What becomes of a shard whose batch failed, or whose backend cannot go on."""

import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.host.conversation import _stands_at, _take_back
from millpond.spark.host.slots import Slot


class Shard:
    """Counts what is asked of it; `refusal` is what its backend answers."""

    def __init__(self, refusal=None):
        self.backend = self
        self.asked = []
        self._refusal = refusal

    def rollback(self):
        self.asked.append("rollback")
        if self._refusal:
            raise self._refusal

    def stand_at(self, head):
        self.rollback()
        return True

    def close(self):
        self.asked.append("close")


@pytest.fixture
def slot():
    return Slot(lambda: 0.0)


def test_a_failed_batch_is_rolled_back_and_the_shard_stays(slot):
    shard = slot.shard = Shard()
    _take_back(slot, shard, ZeroDivisionError())
    assert shard.asked == ["rollback"]
    assert slot.shard is shard


def test_a_damaged_backend_is_given_up_so_that_the_next_batch_restores(slot):
    shard = slot.shard = Shard()
    _take_back(slot, shard, CorruptionError("the folder is damaged"))
    assert shard.asked == ["close"]
    assert slot.shard is None


@pytest.mark.parametrize("refusal", [UnavailableError("no space"), CorruptionError("damaged")])
def test_a_backend_that_cannot_roll_back_is_given_up(slot, refusal):
    shard = slot.shard = Shard(refusal)
    _take_back(slot, shard, ZeroDivisionError())
    assert shard.asked == ["rollback", "close"]
    assert slot.shard is None


@pytest.mark.parametrize("refusal", [UnavailableError("no space"), CorruptionError("damaged")])
def test_a_backend_that_cannot_go_back_does_not_stand_at_the_head(refusal):
    assert not _stands_at(Shard(refusal), None)
    assert _stands_at(Shard(), None)
