"""A sealed checkpoint: what was not written with the key is refused, whatever its checksums say."""

import pickle
import traceback

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, OptionError
from millpond.state import StateReader
from millpond.state.checkpoint import FileStorage, Savepoint, new_manifest, restore
from millpond.state.checkpoint.checkpointer import Checkpointer
from millpond.state.checkpoint.format import seal as seals
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
COUNT = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))
USER = pa.schema([("user", pa.string())])


def write(folder, seal, versions=2):
    """Versions of one shard, in each of which every key has the version's number."""
    manifest = new_manifest("lineage", 0, 1, 8, USER)
    backend = HeapBackend(manifest.key_groups)
    checkpoints = Checkpointer(FileStorage(str(folder), 0, seal=seal), backend, manifest, [COUNT])
    state = backend.value_state(COUNT)
    for version in range(1, versions + 1):
        for group in range(8):
            backend.enter(group)
            backend.context.key = (f"user-{group}",)
            state.update((version,))
        checkpoints.write(checkpoints.begin())


def counts(folder, seal, version=None):
    table = StateReader(str(folder), seal=seal).arrow("count", version)
    return set(table["value.n"].to_pylist())


def files(folder, kind):
    return sorted((folder / "shard-00000" / kind).iterdir())


@pytest.fixture
def sealed(tmp_path):
    write(tmp_path / "sealed", KEY)
    return tmp_path / "sealed"


def test_what_was_sealed_is_read_with_the_key(sealed):
    assert counts(sealed, KEY) == {2}
    assert counts(sealed, Seal(KEY), version=1) == {1}
    backend = HeapBackend(range(8))
    assert restore(FileStorage(str(sealed), 0, seal=KEY), backend, [COUNT]).manifest.version == 2


@pytest.mark.parametrize(("given", "said"), [(None, "is sealed with a key"), (OTHER, "is sealed with the key a7d5")])
def test_without_the_key_or_with_another_nothing_is_taken_and_the_manifest_is_named(sealed, given, said):
    with pytest.raises(OptionError, match=rf"manifest .*shard-00000.* {said}"):
        counts(sealed, given)


def test_what_is_not_sealed_is_refused_where_a_seal_is_asked_for(tmp_path):
    write(tmp_path, None)
    with pytest.raises(CorruptionError, match=r"manifest .* is not sealed"):
        counts(tmp_path, KEY)


def test_who_makes_checksums_right_is_found_and_named(sealed, tmp_path):
    """The forger writes a version of his own with the same code, and no key or another one."""
    for number, seal in enumerate((None, OTHER)):
        forged = tmp_path / f"forged-{number}"
        write(forged, seal)
        for kind in ("heads", "segments"):
            mine, theirs = files(sealed, kind)[-1], files(forged, kind)[-1]
            whole = mine.read_bytes()
            mine.write_bytes((theirs.read_bytes() + bytes(len(whole)))[: len(whole)])
            with pytest.raises((CorruptionError, OptionError), match=r"not sealed|sealed with the key"):
                counts(sealed, KEY)
            mine.write_bytes(whole)
    assert counts(sealed, KEY) == {2}


def test_a_segment_in_anothers_place_is_found():
    seal = Seal(KEY)
    stored = seal.closed(b"of segment 7", seals.segment(7))
    assert seals.opened(seal, stored, seals.segment(7), "segment 7") == b"of segment 7"
    with pytest.raises(CorruptionError, match="segment 8 does not match its seal"):
        seals.opened(seal, stored, seals.segment(8), "segment 8")
    with pytest.raises(CorruptionError, match="the manifest does not match its seal"):
        seals.opened(seal, stored, seals.MANIFEST, "the manifest")


def test_every_altered_bit_and_every_cut_is_found():
    seal = Seal(KEY)
    stored = seal.closed(b"state", "segment 7")
    for bit in range(8 * len(stored)):
        altered = bytearray(stored)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, OptionError)):
            seal.opened(bytes(altered), "segment 7", "segment 7")
    for length in range(len(stored)):
        with pytest.raises(CorruptionError):
            seal.opened(stored[:length], "segment 7", "segment 7")


def test_a_later_format_of_seals_is_refused_with_both_versions():
    stored = bytearray(Seal(KEY).closed(b"state", "segment 7"))
    stored[4] = 2
    with pytest.raises(CorruptionError, match="format version 2; this Millpond reads versions up to 1"):
        Seal(KEY).opened(bytes(stored), "segment 7", "segment 7")


def test_a_savepoint_has_the_seal_of_its_checkpoint_and_is_refused_without_it(sealed, tmp_path):
    location = str(tmp_path / "savepoint")
    StateReader(str(sealed), seal=KEY).savepoint(location)
    assert counts(location, KEY) == {2}
    for given, said in ((None, "is sealed with a key"), (OTHER, "is sealed with the key")):
        with pytest.raises(OptionError, match=rf"MANIFEST {said}"):
            Savepoint.open(location, seal=given)


def test_a_file_of_a_sealed_savepoint_that_was_replaced_is_found_though_its_checksum_is_right(
    sealed, tmp_path, monkeypatch
):
    location = tmp_path / "savepoint"
    saved = StateReader(str(sealed), seal=KEY).savepoint(str(location))
    name = saved.contents.files[0].name
    whole = (location / name).read_bytes()
    (location / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    # A forger who finds other bytes with this checksum: 64 bits of a hash that resists nobody.
    checksum = saved.contents.files[0].checksum
    opened = Savepoint.open(str(location), seal=KEY)
    monkeypatch.setattr("millpond.state.checkpoint.savepoint.xxhash.xxh64_intdigest", lambda _: checksum)
    with pytest.raises(CorruptionError, match=r"file .*count.*does not match its seal"):
        opened.table("count")


def test_a_savepoint_can_get_a_key_or_another_one(sealed, tmp_path):
    write(tmp_path / "plain", None)
    StateReader(str(tmp_path / "plain")).savepoint(str(tmp_path / "adopted"), savepoint_seal=KEY)
    StateReader(str(sealed), seal=KEY).savepoint(str(tmp_path / "rotated"), savepoint_seal=OTHER)
    assert counts(tmp_path / "adopted", KEY) == counts(tmp_path / "rotated", OTHER) == {2}


@pytest.mark.parametrize("key", [b"short", bytes(65), "text" * 8, 7])
def test_what_is_no_key_is_refused_and_not_shown(key):
    with pytest.raises(OptionError, match="expected a key of 16 to 64 random bytes") as told:
        Seal(key)
    assert str(key) not in str(told.value)


def test_the_key_is_shown_nowhere_and_not_stored(sealed, tmp_path):
    key = b"hunter2-Zq7x9_secret-of-a-seal"
    write(tmp_path / "stored", key)
    storage = FileStorage(str(tmp_path / "stored"), 0, seal=key)
    told = [repr(Seal(key)), repr(storage), repr([Seal(key)]), f"{Seal(key)}"]
    for wrong in (None, OTHER):
        with pytest.raises(OptionError) as error:
            counts(tmp_path / "stored", wrong)
        told += traceback.format_exception(error.value)
    for path in (tmp_path / "stored").rglob("*"):
        told.append(path.name)
        if path.is_file():
            assert key not in path.read_bytes()
    assert not any("Zq7x9" in each or key.hex() in each for each in told)
    assert pickle.loads(pickle.dumps(Seal(key))) == Seal(key) != Seal(OTHER)
