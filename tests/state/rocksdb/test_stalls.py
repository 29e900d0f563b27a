"""How long a write waits for a RocksDB that refuses it: while it works, and no longer."""

from millpond.state.rocksdb.stalls import IDLE_SECONDS, RECOVERY_SECONDS, Stalls

STALL = Exception("Result incomplete: Write stall")
FULL = Exception("IO error: No space left on device: While appending to file")
BROKEN = Exception("IO error: Input/output error")


class Disk:
    """A RocksDB whose clock moves half a second with every try."""

    def __init__(self, folder, *, needs_bytes=0, running=lambda now: 0, failed=lambda now: 0, works_at=float("inf")):
        self.now, self.works_at = 0.0, works_at
        counters = {"rocksdb.background-errors": lambda: failed(self.now)}
        counter = lambda name: counters.get(name, lambda: running(self.now))()  # noqa: E731
        self.stalls = Stalls(folder, needs_bytes, counter, lambda: self.now)

    def write(self, error):
        def once():
            self.now += 0.5
            if self.now < self.works_at:
                raise error

        return self.stalls.outlast(error, once)


def test_a_write_waits_as_long_as_flushes_run(tmp_path):
    disk = Disk(tmp_path, running=lambda now: 1, works_at=100)
    assert disk.write(STALL) is None


def test_a_write_fails_when_nothing_has_run_for_a_while(tmp_path):
    disk = Disk(tmp_path, running=lambda now: now < 20, works_at=100)
    assert disk.write(STALL) is STALL
    assert 19 + RECOVERY_SECONDS <= disk.now < 21 + RECOVERY_SECONDS


def test_a_write_fails_soon_where_flushes_fail_or_have_no_room(tmp_path):
    failing = Disk(tmp_path, running=lambda now: 1, failed=lambda now: int(now * 2), works_at=100)
    assert failing.write(STALL) is STALL
    assert failing.now < RECOVERY_SECONDS + 1
    full = Disk(tmp_path, needs_bytes=1 << 62, running=lambda now: 1, works_at=100)
    assert full.write(STALL) is STALL
    assert full.now < IDLE_SECONDS + 1


def test_a_full_disk_is_tried_again_only_where_there_is_room(tmp_path):
    assert Disk(tmp_path, works_at=5).write(FULL) is None
    full = Disk(tmp_path, needs_bytes=1 << 62, works_at=5)
    assert full.write(FULL) is FULL
    assert full.now == 0


def test_other_errors_are_not_tried_again(tmp_path):
    disk = Disk(tmp_path, works_at=1)
    assert disk.write(BROKEN) is BROKEN
    assert disk.now == 0
