"""Other numbers of shards in the harness: by rescaling and by savepoints."""

import pytest

from millpond.errors import OptionError
from millpond.state.checkpoint import FileStorage
from millpond.state.testing.harness import Harness
from tests.state.diary import Diary, harness_of, state_of
from tests.state.failing_storage import Failing


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (5, 7), (7, 5)])
def test_rescaling_keeps_every_count_and_every_timer(before, after):
    with harness_of(before) as harness:
        for record in range(200):
            harness.process(record, at_ms=record)
        harness.process_many(range(200, 300))
        harness.advance_watermark(5)
        expected = state_of(harness)
        harness.take_output()
        harness.rescale(after)
        assert state_of(harness) == expected
        harness.process_many(range(50))
        harness.checkpoint()
        expected = state_of(harness)
        harness.crash()
        assert harness.restore().watermark_ms == 5
        assert state_of(harness) == expected
        assert harness.state("count") == dict.fromkeys(range(50), 7)
        harness.advance_watermark(1000)
        assert [fired[2] for fired in harness.take_output()] == list(range(10, 210))


def test_the_first_checkpoint_after_rescaling_holds_everything_even_if_one_before_it_failed(tmp_path):
    failing = {0}
    with harness_of(2) as harness:
        harness.process_many(range(100))
        expected = state_of(harness)
        harness.rescale(3, storage=lambda number: Failing(FileStorage(str(tmp_path), number), failing))
        with pytest.raises(OSError, match="no space"):
            harness.checkpoint()
        failing.clear()
        harness.checkpoint()
        harness.crash()
        harness.restore()
        assert state_of(harness) == expected


@pytest.mark.parametrize(
    ("before", "after", "backend"), [(4, 2, "rocksdb"), (2, 4, "rocksdb"), (5, 7, "heap"), (7, 5, "heap")]
)
def test_a_savepoint_is_restored_by_any_number_of_shards_of_any_backend(tmp_path, before, after, backend):
    location = str(tmp_path / "savepoint")
    with harness_of(before) as harness:
        for record in range(100):
            harness.process(record, at_ms=record)
        harness.checkpoint()
        harness.process_many(range(100, 150))
        harness.advance_watermark(5)
        harness.savepoint(location)
        expected, layout = state_of(harness), harness.max_parallelism
        harness.process(1)
    with harness_of(1, options={"state.backend.type": backend}, max_parallelism=256) as other:
        other.process(1)
        other.restore_savepoint(location, shards=after)
        assert (state_of(other), other.watermark_ms, other.max_parallelism) == (expected, 5, layout)
        assert other.take_output() == []
        other.advance_watermark(1000)
        assert [fired[2] for fired in other.take_output()] == list(range(10, 110))


def test_the_first_checkpoint_after_a_savepoint_holds_everything(tmp_path):
    with harness_of(2) as harness:
        harness.process_many(range(100))
        harness.savepoint(str(tmp_path / "savepoint"))
        harness.process_many(range(100))
        harness.restore_savepoint(str(tmp_path / "savepoint"))
        harness.process(3)
        harness.checkpoint()
        expected = state_of(harness)
        harness.crash()
        harness.restore()
        assert state_of(harness) == expected
        assert harness.state("count") == {key: 3 if key == 3 else 2 for key in range(50)}


def test_state_under_another_key_is_refused_and_what_is_in_memory_stays(tmp_path):
    with harness_of(2, storage=str(tmp_path / "checkpoints")) as harness:
        harness.process(1)
        harness.checkpoint()
        harness.savepoint(str(tmp_path / "savepoint"))
    with Harness(Diary, key=str, key_type=str, shards=2, storage=str(tmp_path / "checkpoints")) as other:
        other.process(5)
        with pytest.raises(OptionError, match=r"savepoint is keyed by \(int64\), and the operator's key_type is \(str"):
            other.restore_savepoint(str(tmp_path / "savepoint"))
        with pytest.raises(OptionError, match="128 key groups"):
            harness_of().restore_savepoint(str(tmp_path / "savepoint"), shards=129)
        assert other.state("count") == {"5": 1}
        with pytest.raises(OptionError, match=r"keyed by \(int64\)"):
            other.restore()


def test_shards_without_a_key_group_are_refused():
    with pytest.raises(OptionError, match="max_parallelism is 4 with 5 shards"):
        harness_of(5, max_parallelism=4)
    with harness_of(2, max_parallelism=4) as harness, pytest.raises(OptionError, match="max_parallelism is 4 with 5"):
        harness.rescale(5)
