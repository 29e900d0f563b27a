"""Options of keyed state: what is wrong is refused by name and all at once; what is right opens that backend."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import cloudpickle

from millpond.errors import OptionError
from millpond.options import count, size_bytes
from millpond.state import Lru, TwoLayer, WriteBack
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions
from millpond.state.options.registry import _BACKENDS, register_backend
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.rocksdb.options import RocksDbSettings
from millpond.state.spi import CacheHooks, HeapBackend
from millpond.state.wrappers.lru.backend import LruStateCache


@pytest.fixture
def registered(monkeypatch):
    """Backends that the test registers go with it."""
    monkeypatch.setattr("millpond.state.options.registry._BACKENDS", dict(_BACKENDS))


def test_without_options_state_is_on_the_heap_and_not_cached():
    options = StateOptions.parse({})
    assert (options.backend, options.cache) == ("heap", None)


def test_names_and_words_are_read_in_any_case_and_sizes_have_units():
    options = StateOptions.parse(
        {
            "State.Backend.Type": " RocksDB ",
            "state.backend.cache.MAX-ENTRIES-num": "1_000",
            "state.backend.cache.max-bytes": "1 gb",
            "state.backend.rocksdb.write-buffer-size": "8MB",
            "state.backend.rocksdb.block-cache-size": 1 << 20,
            "state.backend.rocksdb.local-dir": "/mnt/fast",
            "state.checkpoint-storage": "s3://bucket/states",
        }
    )
    rocksdb = RocksDbSettings(Path("/mnt/fast"), 8 << 20, 1 << 20)
    cache = Lru(max_entries=1000, max_bytes=1 << 30)
    assert options == StateOptions("rocksdb", cache, "s3://bucket/states", rocksdb)


def test_everything_that_is_wrong_is_said_in_one_error():
    with pytest.raises(OptionError) as refused:
        StateOptions.parse(
            {
                "state.backend.typ": "heap",
                "state.backend.cache.max-entries-num": -1,
                "STATE.backend.cache.max-bytes": "1 pint",
                "state.backend.rocksdb.write-buffer-size": "1kb",
                "state.checkpoint-storage": " ",
            }
        )
    text = str(refused.value)
    assert "'state.backend.typ' is unknown; did you mean 'state.backend.type'?" in text
    assert "'state.backend.cache.max-entries-num': expected a whole number of 0 or more, got -1" in text
    assert "'state.backend.cache.max-bytes': expected a size such as '64mb'" in text
    assert "'state.backend.rocksdb.write-buffer-size': expected a size from 65,536 to 4,294,967,296 bytes" in text
    assert "'state.backend.rocksdb.write-buffer-size' has no effect with state.backend.type = heap" in text
    assert "'state.checkpoint-storage': expected a path or URI" in text


def test_an_option_given_in_two_cases_is_refused():
    with pytest.raises(OptionError, match=r"'state\.backend\.type' is given twice, in different cases"):
        StateOptions.parse({"state.backend.type": "heap", "STATE.BACKEND.TYPE": "rocksdb"})


def test_an_unknown_backend_lists_the_known_and_is_not_said_to_ignore_options():
    with pytest.raises(OptionError) as refused:
        StateOptions.parse({"state.backend.type": "rockdb", "state.backend.rocksdb.local-dir": "/mnt"})
    assert "one of heap, rocksdb, spillable (did you mean 'rocksdb'?), got 'rockdb'" in str(refused.value)
    assert "no effect" not in str(refused.value)


@pytest.mark.parametrize(("name", "kind"), [("heap", HeapBackend), ("rocksdb", RocksDbBackend)])
def test_each_name_opens_its_backend(name, kind, tmp_path):
    backend = open_backend(StateOptions.parse({"state.backend.type": name}), range(4), tmp_path / "backend")
    assert isinstance(backend, kind)
    backend.close()
    assert not (tmp_path / "backend").exists()


@pytest.mark.parametrize("limit", ["max-entries-num", "max-bytes"])
@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_size_of_the_cache_puts_it_in_front_of_the_backend_and_closing_it_closes_both(name, limit, tmp_path):
    options = {"state.backend.type": name, f"state.backend.cache.{limit}": "1000"}
    cache = open_backend(StateOptions.parse(options), range(4), tmp_path / "backend")
    assert isinstance(cache, LruStateCache)
    cache.close()
    assert not (tmp_path / "backend").exists()


@pytest.mark.parametrize(
    ("options", "cache"),
    [
        ({}, None),
        ({"": "none"}, None),
        ({".max-entries-num": 0, ".max-bytes": 0}, None),
        ({"": "NONE", ".max-entries-num": "0"}, None),
        ({".max-entries-num": 10}, Lru(max_entries=10)),
        ({".max-entries-num": 10, ".hit-rate-curve": "true"}, Lru(max_entries=10, hit_rate_curve=True)),
        ({"": "LRU", ".max-bytes": "1kb"}, Lru(max_bytes=1024)),
        ({"": "write-back", ".max-size": "20_000"}, WriteBack(max_size=20_000)),
        ({"": "Two_Layer", ".max-size": 2_000, ".max-size-l2": 23_000}, TwoLayer(max_size=2_000, max_size_l2=23_000)),
    ],
)
def test_a_cache_is_chosen_by_its_name_and_sizes_or_by_flip_325s_limits_alone(options, cache):
    assert StateOptions.parse({f"state.backend.cache{name}": value for name, value in options.items()}).cache == cache


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"": "lru"},
            "state.backend.cache = lru needs state.backend.cache.max-entries-num or state.backend.cache.max-b",
        ),
        ({"": "lru", ".max-entries-num": 0}, "state.backend.cache = lru needs"),
        ({"": "write-back"}, "state.backend.cache = write-back needs state.backend.cache.max-size"),
        ({"": "two-layer", ".max-size": 1}, "state.backend.cache = two-layer needs state.backend.cache.max-size-l2"),
        ({"": "two-layer"}, "needs state.backend.cache.max-size and state.backend.cache.max-size-l2"),
        (
            {"": "none", ".max-entries-num": 1},
            "max-entries-num' has no effect with state.backend.cache = none; remove it",
        ),
        ({"": "write-back", ".max-size": 1, ".hit-rate-curve": True}, "choose state.backend.cache = lru"),
        ({".max-size": 1}, "or choose state.backend.cache = write-back or state.backend.cache = two-layer"),
        (
            {"": "write-back", ".max-size": 1, ".max-size-l2": 1},
            "max-size-l2' has no effect with state.backend.cache = write-back; remove it or choose state.backend.cache",
        ),
        (
            {"": "two-layer", ".max-size": 1, ".max-size-l2": 1, ".max-bytes": 9},
            "'state.backend.cache.max-bytes' has no",
        ),
        (
            {"": "write-back", ".max-size": 0},
            "'state.backend.cache.max-size': expected a whole number of 1 or more, got 0",
        ),
        ({"": "writeback"}, "'state.backend.cache': expected one of none, lru, write-back, two-layer, got 'writeback'"),
        ({".max-sice": 1}, "did you mean 'state.backend.cache.max-size'?"),
    ],
)
def test_an_option_that_the_chosen_cache_ignores_or_lacks_is_refused(options, problem):
    with pytest.raises(OptionError) as refused:
        StateOptions.parse({f"state.backend.cache{name}": value for name, value in options.items()})
    assert problem in str(refused.value)


def test_hooks_go_to_the_cache_that_the_options_choose():
    hooks = CacheHooks(hit_tracker=print)
    sizes = {
        "state.backend.cache": "two-layer",
        "state.backend.cache.max-size": 1,
        "state.backend.cache.max-size-l2": 1,
    }
    assert StateOptions.parse(sizes, hooks=hooks).cache.hooks is hooks
    with pytest.raises(OptionError, match=r"hooks have no effect with state\.backend\.cache = lru"):
        StateOptions.parse({"state.backend.cache.max-entries-num": 1}, hooks=hooks)
    with pytest.raises(OptionError, match="hit_tracker_l2 no effect"):
        StateOptions.parse(
            {"state.backend.cache": "write-back", "state.backend.cache.max-size": 1},
            hooks=CacheHooks(hit_tracker_l2=print),
        )
    with pytest.raises(OptionError, match="hooks of their cache"):
        StateOptions.parse(StateOptions(), hooks=hooks)


def test_options_with_hooks_travel_to_other_processes():
    options = StateOptions(cache=WriteBack(max_size=1, hooks=CacheHooks(on_get=lambda _, value: value)))
    travelled = cloudpickle.loads(cloudpickle.dumps(options))
    assert travelled == options
    assert travelled.cache.hooks.on_get(("ann",), 5) == 5


@pytest.mark.parametrize("limits", [{}, {"max_entries": 0}, {"max_bytes": -1}])
def test_an_lru_cache_without_a_limit_of_one_is_refused(limits):
    with pytest.raises(OptionError, match=r"max_entries|max_bytes"):
        Lru(**limits)


def test_rocksdb_keeps_its_files_in_the_local_dir(tmp_path):
    options = {"state.backend.type": "rocksdb", "state.backend.rocksdb.local-dir": str(tmp_path / "fast")}
    backend = open_backend(StateOptions.parse(options), range(4), tmp_path / "backend")
    assert (tmp_path / "fast" / "backend" / "db").is_dir()
    backend.close()


@pytest.mark.usefixtures("registered")
def test_a_registered_backend_is_opened_by_its_name_wherever_its_options_travel(tmp_path):
    register_backend("Mine", lambda options, key_groups, folder: HeapBackend(key_groups))
    options = cloudpickle.loads(cloudpickle.dumps(StateOptions.parse({"state.backend.type": "MINE"})))
    assert open_backend(options, range(3), tmp_path).key_groups == range(3)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["heap", "HEAP ", "rocksdb"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(OptionError, match="is registered already"):
        register_backend(name, lambda options, key_groups, folder: HeapBackend(key_groups))


@pytest.mark.parametrize("name", [" ", "type", "Cache"])
def test_a_backend_without_a_name_of_its_own_is_refused(name):
    with pytest.raises(OptionError, match=r"needs a name that is not empty, nor one of \['cache', 'type'\]"):
        register_backend(name, lambda options, key_groups, folder: HeapBackend(key_groups))


def test_options_made_in_code_open_the_backend_they_name(tmp_path):
    options = StateOptions("rocksdb", settings=RocksDbSettings(local_dir=tmp_path / "fast"))
    backend = open_backend(options, range(4), tmp_path / "backend")
    assert isinstance(backend, RocksDbBackend)
    assert (tmp_path / "fast" / "backend" / "db").is_dir()
    backend.close()
    assert StateOptions("rocksdb").settings == RocksDbSettings()


def test_options_made_in_code_with_an_unknown_backend_are_refused():
    with pytest.raises(OptionError, match=r"backend='rockdb'.*did you mean 'rocksdb'"):
        StateOptions("rockdb")


@dataclass(frozen=True)
class Shelves:
    boards: int = 4
    least_boards: int = 1
    width_bytes: int = 1 << 10

    def __post_init__(self):
        if self.boards < self.least_boards:
            raise ValueError(f"boards ({self.boards}) are fewer than least-boards ({self.least_boards})")


def shelf_of(opened):
    """Registers a backend with options of its own; what its factory is given goes to `opened`."""

    def factory(options, key_groups, folder):
        opened.append(options.settings)
        return HeapBackend(key_groups)

    register_backend(
        "shelf",
        factory,
        options={
            "State.Backend.Shelf.boards": ("boards", count),
            "state.backend.shelf.least-boards": ("least_boards", count),
            "state.backend.shelf.width": ("width_bytes", size_bytes(1 << 10)),
        },
        settings=Shelves,
    )


@pytest.mark.usefixtures("registered")
def test_a_backends_own_options_reach_its_factory_parsed(tmp_path):
    opened = []
    shelf_of(opened)
    options = StateOptions.parse({"state.backend.type": "SHELF", "state.backend.shelf.WIDTH": "2kb"})
    open_backend(options, range(4), tmp_path)
    assert opened == [Shelves(width_bytes=2048)]
    assert StateOptions.parse({"state.backend.type": "shelf"}) == StateOptions("shelf", settings=Shelves())


@pytest.mark.usefixtures("registered")
def test_a_backends_own_options_are_checked_like_all_others():
    shelf_of([])
    with pytest.raises(OptionError) as refused:
        StateOptions.parse(
            {
                "state.backend.type": "shelf",
                "state.backend.shelf.bords": 1,
                "state.backend.shelf.width": "1b",
                "state.backend.rocksdb.local-dir": "/mnt",
            }
        )
    text = str(refused.value)
    assert "'state.backend.shelf.bords' is unknown; did you mean 'state.backend.shelf.boards'?" in text
    assert "'state.backend.shelf.width': expected a size from 1,024" in text
    assert (
        "'state.backend.rocksdb.local-dir' has no effect with state.backend.type = shelf; remove it or choose" in text
    )
    with pytest.raises(OptionError, match=r"'state\.backend\.shelf\.boards' has no effect with .* = heap; .*shelf"):
        StateOptions.parse({"state.backend.shelf.boards": 2})


@pytest.mark.usefixtures("registered")
def test_what_is_wrong_with_a_backends_options_together_is_said_by_its_settings():
    shelf_of([])
    with pytest.raises(
        OptionError, match=r"'state\.backend\.shelf\.\*': boards \(1\) are fewer than least-boards \(2\)"
    ):
        StateOptions.parse(
            {"state.backend.type": "shelf", "state.backend.shelf.boards": 1, "state.backend.shelf.least-boards": 2}
        )


@pytest.mark.usefixtures("registered")
def test_options_that_do_not_bear_the_backends_name_are_refused():
    with pytest.raises(OptionError, match=r"\['state\.backend\.boards'\].*names begin with"):
        register_backend(
            "shelf",
            lambda options, key_groups, folder: HeapBackend(key_groups),
            options={"state.backend.boards": ("boards", count)},
        )
