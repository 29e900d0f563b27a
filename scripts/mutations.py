"""Breaks one guard after another, and expects the tests to notice: run by `make mutations`.

    python scripts/mutations.py                          every mutation
    python scripts/mutations.py "the lease of a shard"   only these, by name

A mutation is one textual change of a guard: a fence, the order of two writes, a limit of time, a condition of a delete.
It is made in a copy of `src/`, on which the named tests run. They must fail.
What survives is a guard that no test holds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = Path("src") / "millpond"


@dataclass(frozen=True)
class Mutation:
    """A guard, and the tests that hold it.

    Attributes:
        name: of what breaks.
        file: of the guard, in `src/millpond/`.
        guard: its text, which stands there once.
        broken: what stands there instead.
        tests: files or tests, of which one must fail.
        also: other guards of the same file that break with it, and what stands there instead.
    """

    name: str
    file: str
    guard: str
    broken: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()

    def broken_in(self, whole: str) -> str:
        """The file with everything that this breaks. A ValueError says that a guard does not stand there once."""
        for guard, broken in ((self.guard, self.broken), *self.also):
            if whole.count(guard) != 1:
                raise ValueError(f"{self.name}: {guard!r} stands {whole.count(guard)} times in {self.file}")
            whole = whole.replace(guard, broken)
        return whole


_NEWEST_IS_MINE = (
    "        if not chain or chain[0].identity != _identity(manifest):\n            return\n",
    "        if not chain:\n            return\n",
)
_LOOK_BEFORE_DELETION = (
    '        self._refuse_if_passed(f"{self.name}: nothing was deleted")\n',
    "",
)

MUTATIONS = [
    Mutation(
        "the end of a life",
        "state/types/ttl.py",
        "return now_ms - alive_since_ms >= self.duration_ms",
        "return now_ms - alive_since_ms > self.duration_ms",
        ("tests/state/types/test_ttl.py",),
    ),
    Mutation(
        "the first of two old values",
        "state/heap/versions.py",
        "        if key not in undo:\n            undo[key] = table.get(key, ABSENT)",
        "        undo[key] = table.get(key, ABSENT)",
        ("tests/state/heap/test_versions.py", "tests/state/conformance/test_versions.py"),
    ),
    Mutation(
        "a dirty entry that is evicted",
        "state/wrappers/king/write_back.py",
        "        self._below.write(((where, entry),))\n        self._below.let_go(where)",
        "        self._below.let_go(where)",
        ("tests/state/wrappers/test_write_back.py",),
    ),
    Mutation(
        "a cached value that was overwritten",
        "state/wrappers/king/cached_state.py",
        "                layer.invalidate(where)",
        "                pass",
        ("tests/state/wrappers/test_cached_values.py", "tests/state/conformance/test_cells.py"),
    ),
    Mutation(
        "a timer that is due now",
        "state/backend/timer_queue.py",
        "self._entries[0][0] <= limit_ms:",
        "self._entries[0][0] < limit_ms:",
        ("tests/state/operator/test_timers.py",),
    ),
    Mutation(
        "the order of timers in RocksDB goes back with its cells",
        "state/rocksdb/timers.py",
        "                    yield from self._place_in_order(at, data)",
        "                    pass",
        ("tests/state/rocksdb/test_timers.py",),
    ),
    Mutation(
        "a timer that was deleted while it was on disk",
        "state/spillable/timer_queue.py",
        "        if not deletions.has(entry):",
        "        if deletions is not None:",
        ("tests/state/spillable/test_timer_queue.py",),
    ),
    Mutation(
        "a page of a spill file is compared before it is used",
        "state/spillable/page_sums.py",
        "        if checksum_of(data) != self._sums[page]:",
        "        if not data:",
        ("tests/state/spillable/test_page_seals.py",),
    ),
    Mutation(
        "segments before their manifest",
        "state/checkpoint/storage/files.py",
        "            self._write_segments(commit)\n"
        "            self._refuse_if_passed(what)\n"
        "            self._folder.write(manifest_path, encoded)\n"
        '            self._folder.sync("heads")\n',
        "            self._folder.write(manifest_path, encoded)\n"
        '            self._folder.sync("heads")\n'
        "            self._refuse_if_passed(what)\n"
        "            self._write_segments(commit)\n",
        ("tests/state/checkpoint/test_files.py", "tests/state/models/test_files_against_acknowledgements.py"),
    ),
    Mutation(
        "the lease of a folder of checkpoints",
        "state/checkpoint/storage/files.py",
        "higher = [lease for lease in self._leases() if lease > self._mine]",
        "higher = [lease for lease in self._leases() if lease > self._mine and False]",
        ("tests/state/checkpoint/test_files.py", "tests/state/models/test_files_against_acknowledgements.py"),
    ),
    Mutation(
        "a later writer's manifest",
        "state/checkpoint/storage/files.py",
        "if found.name not in kept and found.writer <= self._mine]",
        "if found.name not in kept]",
        ("tests/state/checkpoint/test_files.py", "tests/state/models/test_files_against_acknowledgements.py"),
    ),
    Mutation(
        "a later writer's segment",
        "state/checkpoint/storage/files.py",
        "            and found.writer <= self._mine\n            and (found.id",
        "            and (found.id",
        ("tests/state/checkpoint/test_files.py", "tests/state/models/test_files_against_acknowledgements.py"),
    ),
    Mutation(
        "deletion by who was passed by",
        "state/checkpoint/storage/files.py",
        *_NEWEST_IS_MINE,
        ("tests/state/checkpoint/test_takeover.py",),
    ),
    Mutation(
        "deletion under who is restoring",
        "state/checkpoint/storage/files.py",
        *_LOOK_BEFORE_DELETION,
        ("tests/state/checkpoint/test_takeover.py",),
    ),
    Mutation(
        "both guards of deletion",
        "state/checkpoint/storage/files.py",
        *_NEWEST_IS_MINE,
        ("tests/state/checkpoint/test_takeover.py",),
        also=(_LOOK_BEFORE_DELETION,),
    ),
    Mutation(
        "an older base segment",
        "state/checkpoint/restoring.py",
        "bases[group - first] == ref.version if ref.base else",
        "bases[group - first] >= ref.version if ref.base else",
        ("tests/state/checkpoint/test_older_bases.py",),
    ),
    Mutation(
        "the token of a manifest",
        "state/checkpoint/format/manifest.py",
        "return (self.lineage, self.version, self.token) == (other.lineage, other.version, other.token)",
        "return (self.lineage, self.version) == (other.lineage, other.version)",
        ("tests/state/checkpoint/test_shard.py", "tests/state/models/test_shard_against_the_store.py"),
    ),
    Mutation(
        "a record that was altered under its seal",
        "state/checkpoint/format/seal.py",
        "if not hmac.compare_digest(mac, self.mac(record, what)):",
        "if not mac:",
        ("tests/state/checkpoint/test_seal.py",),
    ),
    Mutation(
        "a record without a seal",
        "state/checkpoint/format/seal.py",
        "        if not is_sealed(data):\n",
        "        if not is_sealed(data):\n            return bytes(data)\n        if not data:\n",
        ("tests/state/checkpoint/test_seal.py",),
    ),
    Mutation(
        "another shard's folder",
        "state/checkpoint/storage/files.py",
        "        if others:\n",
        "        if not others and others:\n",
        ("tests/state/checkpoint/test_files.py", "tests/state/models/test_files_against_acknowledgements.py"),
    ),
    Mutation(
        "changes of a failed checkpoint",
        "state/checkpoint/checkpointer.py",
        "                self._shard.lose(pending)\n                raise",
        "                raise",
        ("tests/state/checkpoint/test_checkpointer.py",),
    ),
    Mutation(
        "a commit that fails on the way",
        "state/checkpoint/shard.py",
        "            self.backend.undo_commit()\n            self._intact = True",
        "            self._intact = True",
        (
            "tests/state/checkpoint/test_shard.py",
            "tests/state/checkpoint/test_shard_restarts.py",
            "tests/state/models/test_shard_against_the_store.py",
        ),
    ),
    Mutation(
        "a batch that broke off",
        "state/checkpoint/shard.py",
        "        if not self._ended:\n            self.rollback()\n",
        "",
        (
            "tests/state/checkpoint/test_shard.py",
            "tests/state/checkpoint/test_shard_restarts.py",
            "tests/state/models/test_shard_against_the_store.py",
        ),
    ),
    Mutation(
        "the lease of a shard",
        "spark/runtime/slots.py",
        "attempt.order < earlier.attempt.order:",
        "attempt.order < -1:",
        ("tests/spark/runtime/test_slots.py",),
    ),
    Mutation(
        "an attempt that was superseded while it waited",
        "spark/runtime/slots.py",
        "            if lease.superseded_by:\n                lease.refuse()\n            yield lease",
        "            yield lease",
        ("tests/spark/runtime/test_slots.py",),
    ),
    Mutation(
        "a row at the watermark",
        "spark/runtime/shard_run.py",
        "pc.greater(event_times, limit)",
        "pc.greater_equal(event_times, limit)",
        ("tests/spark/runtime/test_shard_run.py",),
    ),
    Mutation(
        "the age at which an entry is too old",
        "cache/expiry.py",
        "if deadline_ms > now_ms:",
        "if deadline_ms >= now_ms:",
        ("tests/cache/test_contract.py", "tests/cache/test_shared.py"),
    ),
    Mutation(
        "a load that began before an invalidation",
        "cache/flights.py",
        "            del self._under_way[key]\n        return current",
        "            del self._under_way[key]\n        return list(keys)",
        ("tests/cache/test_contract.py", "tests/cache/test_shared.py"),
    ),
    Mutation(
        "a lookup in columns that began before an invalidation",
        "lookup/caches/partial_columns.py",
        "            for key in hashed.hashes.tolist():\n                self._in_flight.forget(key)\n",
        "",
        ("tests/lookup/test_in_flight.py",),
    ),
    Mutation(
        "a cached absence that answers no retry",
        "spark/lookup/waiting.py",
        "                    rows.forget_missing(keys)\n",
        "                    pass\n",
        ("tests/spark/lookup/test_waiting.py",),
    ),
    Mutation(
        "events that are due at the same time as others",
        "spark/lookup/waiting.py",
        "[*there, *parts[home :: len(used)]]",
        "parts[home :: len(used)]",
        ("tests/spark/lookup/test_waiting.py",),
    ),
    Mutation(
        "the last retry of an event whose row is missing",
        "spark/lookup/waiting.py",
        "before < self._retries.max_attempts",
        "before <= self._retries.max_attempts",
        ("tests/spark/lookup/test_waiting.py",),
    ),
    Mutation(
        "keys of one hash",
        "lookup/column_cache/cache.py",
        "            slots[there[~same]] = -1\n",
        "",
        ("tests/lookup/test_column_cache.py",),
    ),
    Mutation(
        "a version that is read before the scan",
        "lookup/caches/full.py",
        "        self._version = version\n",
        "        self._version = self._version_now()\n",
        ("tests/lookup/test_unchanged.py",),
    ),
    Mutation(
        "stale rows while the source is down, and not after",
        "lookup/caches/partial_columns.py",
        "        except UnavailableError:\n",
        "        except Exception:\n",
        ("tests/lookup/test_freshness.py",),
    ),
    Mutation(
        "a lookup that began before an invalidation",
        "lookup/caches/partial.py",
        "                self._in_flight.forget(key)\n",
        "",
        ("tests/lookup/test_in_flight.py",),
    ),
    Mutation(
        "a reload that finds nothing",
        "lookup/caches/full.py",
        "if not table.key_count and self._cache.size() and not self._allow_empty:",
        "if not table.key_count and self._cache.size() and self._allow_empty:",
        ("tests/lookup/test_full.py",),
    ),
    Mutation(
        "a reload that ends after close",
        "lookup/caches/full.py",
        "            if self._closed:\n                return\n",
        "",
        ("tests/lookup/test_opening_full.py",),
    ),
    Mutation(
        "the near end of a window",
        "features/windows.py",
        "return window_start(query_ms, window_ms) <= event_ms < query_ms",
        "return window_start(query_ms, window_ms) <= event_ms <= query_ms",
        ("tests/features/test_windows.py",),
    ),
    Mutation(
        "a tile that is still open",
        "serving/caches/closed_tiles.py",
        "if not tile.complete or tile.end_ms > limit_ms:",
        "if tile.end_ms > limit_ms:",
        ("tests/serving/test_closed_tiles.py",),
    ),
    Mutation(
        "the leaves of a block of tiles",
        "spark/features/tiles/leaves.py",
        "    if root.begins[:1] != [0] or any(begin >= after for begin, after in pairwise([*root.begins, _HASHES])):\n",
        "    if not root.begins:\n",
        ("tests/spark/features/test_tile_leaves.py",),
    ),
    Mutation(
        "a closed tile that was amended",
        "serving/reads/cached_reader.py",
        "            if rows[-1].value != closed.marker:\n                return None\n",
        "",
        ("tests/serving/test_closed_tiles.py",),
    ),
    Mutation(
        "waiting closed tiles of a stream that restarted",
        "serving/caches/new_entries.py",
        "        if closed.holds(group.served):\n            cache.put(self._key, closed)",
        "        cache.put(self._key, closed)",
        ("tests/serving/test_waiting_entries.py",),
    ),
    Mutation(
        "waiting entries of a former batch",
        "serving/caches/new_entries.py",
        "        if group.served.landed is not self._landed:\n            return\n",
        "",
        ("tests/serving/test_waiting_entries.py",),
    ),
]


def main(chosen: list[str]) -> int:
    """Make the chosen mutations, one after the other; 1 if one survived."""
    unknown = set(chosen) - {each.name for each in MUTATIONS}
    if unknown:
        print(f"mutations: there is no {', '.join(sorted(unknown))}")
        return 2
    mutations = [each for each in MUTATIONS if each.name in chosen or not chosen]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        whole = _tested(Path(folder), sorted({test for each in mutations for test in each.tests}))
        if whole.returncode:
            print(f"mutations: the tests fail without one\n{whole.stdout}")
            return 1
        survived = [each for each in mutations if not _is_found(each, Path(folder))]
    print(f"mutations: {len(mutations) - len(survived)} of {len(mutations)} were found")
    return int(bool(survived))


def _is_found(mutation: Mutation, folder: Path) -> bool:
    file = folder / SOURCE / mutation.file
    whole = file.read_text()
    _write(file, mutation.broken_in(whole))
    ran = _tested(folder, mutation.tests)
    _write(file, whole)
    failed = re.search(r"^FAILED (\S+)", ran.stdout, re.MULTILINE)
    # Anything but failed tests, such as a module that no longer compiles, says nothing of the guard.
    found = ran.returncode == 1 and failed is not None
    print(f"mutations: {mutation.name}: {failed[1] if found else 'SURVIVED'}", flush=True)
    return found


def _write(file: Path, text: str) -> None:
    """Write a module, and forget what was compiled of it: two changes in one second have one time."""
    file.write_text(text)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def _tested(folder: Path, tests: list[str] | tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (folder / "src", ROOT)))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *tests]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
