"""What each version wrote is read by this one: checkpoints, savepoints, a store and a mapped table, on every backend.

A version's files are never edited. Those of the present version are written by

    python -m tests.upgrade.test_upgrade

into a folder of its name, which must not be there yet.
"""

import json
import shutil
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, MillpondError
from millpond.features.stored.value_header import checked_body, with_header
from millpond.kv import LmdbStore
from millpond.lookup import MappedTable
from millpond.serving import Fetcher
from millpond.state import FileStorage, Harness, Savepoint
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.format.segment import FORMAT_VERSION, decode_segment
from tests.serving.world import BATCH_END_MS, EWR, JFK, NOON_MS, ROUTE, ROUTE_PLAN, Stream, upload

WRITTEN = Path(__file__).parent / "written"
VERSIONS = sorted(folder.name for folder in WRITTEN.iterdir()) if WRITTEN.exists() else []
BACKENDS = ["heap", "rocksdb", "spillable"]
KEY = bytes(range(32))
TABLE = pa.table({"code": ["EWR", "JFK", "JFK", None], "gate": [1, 2, 3, 4]})


class Visits:
    """A value, a list, a map and a timer."""

    def open(self, states):
        self.count = states.value("count", int, default=0)
        self.pages = states.list("pages", str)
        self.last = states.map("last", str, int)

    def process(self, user, visit, context):
        number, page = visit[1:]
        self.count.update(self.count.get() + 1)
        self.pages.append(page)
        self.last.put(page, number)
        context.event_timers.register(1000 + number)
        yield user, number

    def on_timer(self, user, timer, context):
        yield user, timer.at_ms


def harness(backend="heap", storage=None):
    return Harness(
        Visits,
        key=lambda visit: visit[0],
        key_type=str,
        shards=2,
        max_parallelism=8,
        options={"state.backend.type": backend},
        storage=storage,
    )


VISITS = [(f"user-{number % 5}", number, f"/{number % 3}") for number in range(30)]


def contents(made):
    return {
        "count": dict(made.state("count")),
        "pages": {user: list(pages) for user, pages in made.state("pages").items()},
        "last": {user: dict(last) for user, last in made.state("last").items()},
    }


def fired(made):
    made.advance_watermark(5000)
    return sorted(made.take_output())


def write(folder):
    for backend in BACKENDS:
        with harness(backend, str(folder / backend)) as made:
            for first in (0, 10, 20):
                made.process_many(VISITS[first : first + 10])
                made.checkpoint()
            if backend == "heap":
                made.savepoint(str(folder / "savepoint"))
    with harness(storage=lambda shard: FileStorage(str(folder / "sealed"), shard, seal=KEY)) as made:
        made.process_many(VISITS)
        made.checkpoint()
    with closing(LmdbStore(folder / "store", map_bytes=1 << 20)) as store:
        events = [(BATCH_END_MS - number * 3_600_000 - 1, (float(number), f"N{number % 3}")) for number in range(40)]
        upload(store, ROUTE_PLAN, {("EWR", "UA"): events, ("JFK", "B6"): events[:3]})
        stream = Stream(store, ROUTE_PLAN)
        stream.add(("EWR", "UA"), [(BATCH_END_MS + number * 600_000, (1.0, "N9")) for number in range(50)])
        stream.close(NOON_MS)
    (folder / "answers.json").write_text(json.dumps(answers(folder / "store"), indent=1) + "\n")
    MappedTable.of(TABLE, ["code"], folder / "gates.table")


def answers(store):
    with closing(LmdbStore(store)) as opened:
        fetcher = Fetcher(opened, [ROUTE])
        return [fetcher.fetch("route", key, at).features for key in (EWR, JFK) for at in (BATCH_END_MS, NOON_MS)]


def expected():
    with harness() as made:
        made.process_many(VISITS)
        made.take_output()
        return contents(made), fired(made)


@pytest.fixture(params=VERSIONS)
def written(request, tmp_path):
    """A copy of what a version wrote: whoever reads a checkpoint to go on takes it over."""
    return Path(shutil.copytree(WRITTEN / request.param, tmp_path / "written"))


def test_there_is_a_folder_of_some_version():
    assert VERSIONS


@pytest.mark.parametrize("to", BACKENDS)
@pytest.mark.parametrize("of", [*BACKENDS, "sealed"])
def test_a_checkpoint_of_any_backend_is_restored_by_any_backend(written, of, to):
    storage = str(written / of)
    if of == "sealed":
        storage = lambda shard: FileStorage(str(written / of), shard, seal=KEY)  # noqa: E731 - opened shard by shard
    with harness(to, storage) as made:
        made.restore()
        assert (contents(made), fired(made)) == expected()


@pytest.mark.parametrize("to", BACKENDS)
def test_a_savepoint_is_restored_by_any_backend(written, to):
    with harness(to) as made:
        made.restore_savepoint(str(written / "savepoint"), shards=3)
        assert (contents(made), fired(made)) == expected()


def test_a_store_answers_as_it_did(written):
    assert answers(written / "store") == json.loads((written / "answers.json").read_text())


def test_a_mapped_table_is_read(written):
    table = MappedTable(written / "gates.table")
    assert sorted(table.find([("JFK",)], ["gate"])["JFK",]) == [(2,), (3,)]


LATER = FORMAT_VERSION + 1


def later(data, at, number):
    return data[:at] + bytes([number]) + data[at + 1 :]


def newest(folder, kind):
    return max((folder / "heap" / "shard-00000" / kind).iterdir()).read_bytes()


def of_a_savepoint(folder):
    manifest = folder / "savepoint" / "MANIFEST"
    manifest.write_bytes(later(manifest.read_bytes(), 4, LATER))
    return Savepoint.open(str(folder / "savepoint"))


def of_a_table(folder):
    data = (folder / "gates.table").read_bytes()
    (folder / "gates.table").write_bytes(later(data, len(data) - 12, 4))
    return MappedTable(folder / "gates.table")


NEWER = {
    "segment": (lambda folder: decode_segment(later(newest(folder, "segments"), 4, LATER), "it"), (LATER, LATER - 1)),
    "manifest": (lambda folder: Manifest.decode(later(newest(folder, "heads"), 4, LATER), "it"), (LATER, LATER - 1)),
    "savepoint": (of_a_savepoint, (LATER, LATER - 1)),
    "seal": (lambda _: Seal(KEY).opened(later(Seal(KEY).closed(b"", "it"), 4, 2), "it", "it"), (2, 1)),
    "mapped table": (of_a_table, (4, 3)),
    "stored feature": (lambda _: checked_body(2, with_header(3, b"body"), "it"), (3, 2)),
}


@pytest.mark.parametrize("what", NEWER)
def test_a_newer_format_is_refused_with_both_versions(written, what):
    read, (theirs, ours) = NEWER[what]
    with pytest.raises(MillpondError, match=rf"version {theirs}\D.*\b{ours}\b") as told:
        read(written)
    assert isinstance(told.value, CorruptionError)


if __name__ == "__main__":
    target = WRITTEN / version("millpond")
    if target.exists():
        sys.exit(f"{target} is there already, and is never written again")
    target.mkdir(parents=True)
    write(target)
