"""The checksums of a spill file's pages: they follow every write, and no altered byte is taken for what was written."""

import os
import random
from pathlib import Path

import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.spillable.spill_file import CHECKED_AGAIN_MS, SpillFile
from tests.state.spillable.conftest import GROUPS, everything, filled, put

MB = 1 << 20
CELLS = 3_000
SHORT = random.Random(5).randbytes(90)


def key(number):
    """So long that a branch page refers to few pages, and the tree is three pages high."""
    return b"%08d" % number + b"." * 120


LARGE = key(700)


def value(number):
    return bytes([number % 251]) * (number % 60) if number % 700 else bytes([number % 251]) * 6_000


def opened(folder, clock_ms=lambda: 0):
    """A file with a key group of several leaves and large values, a smaller one, and free pages."""
    file = SpillFile(folder, MB, 4, clock_ms=clock_ms)
    one, two, three = map(file.database, range(3))
    model = {key(number): value(number) for number in range(CELLS)}
    file.write(one, list(model.items()))
    assert file._seals.trees[one].record.height == 3
    file.write(two, [(b"x", b"1"), (b"y", b"2")])
    file.write(three, list(model.items())[:1_000])
    file.empty(three)
    return file, one, model


def path_of(file):
    """A path to a file that has no name."""
    return Path(f"/proc/self/fd/{file._pages.fileno()}")


def alter(file, place, xor):
    """Change a byte of the file, as a disk does while the page is not in memory."""
    with path_of(file).open("r+b", buffering=0) as disk:
        byte = os.pread(disk.fileno(), 1, place)[0]
        os.pwrite(disk.fileno(), bytes([byte ^ xor]), place)


def size_of(file):
    return os.fstat(file._pages.fileno()).st_size


def scanned(file, database, prefix=b"", most=4_000):
    found, last = [], b""
    while some := file.scan(database, prefix, last, most):
        found, last = found + some, some[-1][0]
    return dict(found)


def get_each(file, database, model):
    for at in [*model, key(1) + b"x", b"0", b"zzz"]:
        assert file.get(database, at) == model.get(at)


def get_some(file, database, model):
    for at in [key(1_234), LARGE, key(2_999), key(1) + b"x"]:
        assert file.get(database, at) == model.get(at)


def scan_some(file, database, model):
    for prefix in (b"0000123", b"000029", b"x"):
        expected = {at: stored for at, stored in model.items() if at.startswith(prefix)}
        assert scanned(file, database, prefix, 7) == expected


def scan_all(file, database, model):
    assert scanned(file, database) == model


def overwrite_some(file, database, model):
    new = [(at, SHORT) for at in [key(7), LARGE, key(1_234)]]
    file.write(database, new)
    model.update(new)


def overwrite_many(file, database, model):
    new = [(at, SHORT) for at in list(model)[::3]]
    file.write(database, new)
    model.update(new)


def delete_many(file, database, model):
    gone = list(model)[100:2_000]
    file.write(database, (), gone)
    for at in gone:
        del model[at]


def append_some(file, database, model):
    new = [(b"1%07d" % number, SHORT) for number in range(200)]
    file.write(database, new, append=True)
    model.update(new)


def empty_it(file, database, model):
    file.empty(database)
    model.clear()


ACTS = [
    get_each,
    get_some,
    scan_some,
    scan_all,
    overwrite_some,
    overwrite_many,
    delete_many,
    append_some,
    empty_it,
]


def places_in(drawn, pages, size):
    """A place anywhere, or in the header of a page, or in the list of its cells that follows."""
    page = drawn.randrange(pages) * size
    return page + drawn.choice((drawn.randrange(16), 16 + drawn.randrange(200), drawn.randrange(size)))


@pytest.mark.parametrize("act", ACTS, ids=[act.__name__ for act in ACTS])
def test_a_flipped_bit_gives_the_right_answer_or_is_found(tmp_path, act):
    """A wrong answer fails the test, and a read outside of the map ends it."""
    drawn = random.Random(act.__name__)
    refused = 0
    for number in range(60):
        file, database, model = opened(tmp_path / str(number))
        file.forget_pages()
        file._seals.check_again()
        alter(file, places_in(drawn, size_of(file) // 4_096, 4_096), 1 << drawn.randrange(8))
        try:
            act(file, database, model)
            file._seals.check_again()
            get_each(file, database, model)
            scan_all(file, database, model)
            file.write(database, [(at, b"new") for at in model])
            scan_all(file, database, dict.fromkeys(model, b"new"))
        except CorruptionError:
            refused += 1
        file.close()
    assert refused > 10


def test_what_was_altered_is_found_by_the_first_read_a_minute_later(tmp_path):
    now_ms = [0]
    file, database, _ = opened(tmp_path, lambda: now_ms[0])
    now_ms[0] += CHECKED_AGAIN_MS
    for page in range(2, size_of(file) // 4_096):
        alter(file, page * 4_096 + 2_000, 1)
    file.check_again_if_due()
    with pytest.raises(CorruptionError, match=r"spill file in .* is damaged: page \d+ is not as it was written"):
        file.get(database, key(1_234))
    file.close()


def test_an_altered_large_value_is_found_by_every_read(tmp_path):
    file, database, model = opened(tmp_path)
    assert file.get(database, LARGE) == model[LARGE]
    place = path_of(file).read_bytes().index(model[LARGE])
    alter(file, place + 3_000, 4)
    with pytest.raises(CorruptionError, match="a value is not as it was written"):
        file.get(database, LARGE)
    with pytest.raises(CorruptionError, match="a value is not as it was written"):
        scanned(file, database)
    file.close()


def test_a_file_that_was_cut_is_damaged(tmp_path):
    """A read of the map behind the end of the file would end the process with a signal."""
    file, database, _ = opened(tmp_path)
    file.forget_pages()
    file._seals.check_again()
    os.truncate(path_of(file), 3 * 4_096)
    with pytest.raises(CorruptionError):
        get_each(file, database, {})
    file.close()


def test_a_disk_that_cannot_be_read_is_told_from_a_damaged_file(tmp_path, monkeypatch):
    file, database, _ = opened(tmp_path)
    file._seals.check_again()

    def failing(*_args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        with pytest.raises(UnavailableError, match=r"could not be read: .*Input/output error"):
            file.get(database, key(1_234))
    assert file.get(database, key(1_234)) == value(1_234)
    file.close()


def test_pages_are_checked_once_until_they_are_written_or_a_minute_has_passed(tmp_path, monkeypatch):
    now_ms = [0]
    file, database, model = opened(tmp_path, lambda: now_ms[0])
    read = []
    pread = os.pread

    def counted(descriptor, count, place):
        read.append(place)
        return pread(descriptor, count, place)

    monkeypatch.setattr(os, "pread", counted)
    get_each(file, database, model)
    scan_all(file, database, model)
    assert read == []
    file.forget_pages()
    get_some(file, database, model)
    assert read == []
    now_ms[0] += CHECKED_AGAIN_MS
    file.check_again_if_due()
    assert file.get(database, key(1_234)) == model[key(1_234)]
    pages = file.size(database).bytes // 4_096
    assert 0 < len(read) < pages / 2, "only the pages on the way to the cell"
    get_each(file, database, model)
    read.clear()
    get_each(file, database, model)
    assert read == []
    file.close()


@pytest.mark.parametrize("seed", range(6))
def test_the_checksums_are_those_of_the_pages_of_lmdbs_trees(tmp_path, seed):
    drawn = random.Random(seed)
    file = SpillFile(tmp_path, MB, 4)
    groups = [(file.database(number), {}) for number in range(3)]
    for _ in range(60):
        database, model = drawn.choice(groups)
        act = drawn.randrange(8)
        if act < 3:
            change(drawn, file, database, model)
        elif act == 3:
            last = max(model, default=b"")
            new = [(last[:50] + b"x%04d" % number, SHORT) for number in range(drawn.choice((3, 400)))]
            if new[0][0] > last:
                file.write(database, new, append=True)
                model.update(new)
        elif act == 4 and drawn.random() < 0.3:
            empty_it(file, database, model)
        elif act == 5:
            file.forget_pages()
            if drawn.random() < 0.5:
                file._seals.check_again()
        elif act == 6:
            for at in [b"%06d" % drawn.randrange(20_000) for _ in range(200)]:
                assert file.get(database, at) == model.get(at)
        else:
            prefix = (b"%03d" % drawn.randrange(200))[: drawn.randrange(4)]
            expected = {at: stored for at, stored in model.items() if at.startswith(prefix)}
            assert scanned(file, database, prefix, drawn.choice((1, 50, 4_000))) == expected
        for each, _ in groups:
            check_pages(file, each)
    file.close()


def change(drawn, file, database, model):
    """Put and delete cells at random places, some of them large."""
    length = drawn.choice((1, 60, 900, 2_500, 9_000))
    count = drawn.choice((1, 10, 500, 3_000)) if length < 100 else 40
    kept = {b"%06d" % drawn.randrange(20_000): drawn.randbytes(drawn.randrange(length)) for _ in range(count)}
    gone = [at for at in drawn.sample(sorted(model), min(len(model), drawn.choice((0, 5, 1_500)))) if at not in kept]
    file.write(database, sorted(kept.items()), gone)
    model.update(kept)
    for at in gone:
        del model[at]


def check_pages(file, database):
    """The pages that are known of a group are as many as LMDB says, and are no other group's."""
    tree, owner = file._seals.trees[database], file._seals._sums.owner
    with file.lock:
        found = file._reading().stat(database)
    assert tree.record.height == found["depth"]
    assert len(tree._branches) == found["branch_pages"]
    assert len(tree.pages()) == found["branch_pages"] + found["leaf_pages"]
    assert {page for page, number in enumerate(owner) if number == tree._number} == set(tree.pages())
    if database not in file._seals.unchecked:
        assert all(file._seals._sums._is_checked[page] for page in tree.pages())


def test_a_backend_with_an_altered_page_says_that_it_is_to_be_restored(world):
    backend = world.open()
    filled(backend)
    expected = everything(backend)
    backend.spill_now(GROUPS)
    assert everything(backend) == expected
    world.ms += CHECKED_AGAIN_MS
    file = backend._migrator.spilled[3].file
    for page in range(2, size_of(file) // 4_096):
        alter(file, page * 4_096 + 3_000, 16)
    with pytest.raises(CorruptionError, match="restore"):
        put(backend, 3, ["3-1"])
    with pytest.raises(CorruptionError, match="restore"):
        backend.load_now([4])
    with pytest.raises(CorruptionError, match="restore"):
        backend.cells("count", 5)
