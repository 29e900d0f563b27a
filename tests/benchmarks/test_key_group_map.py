"""The map of key groups: what is added up for it, and that it is drawn."""

import pyarrow as pa

from benchmarks import key_group_map
from benchmarks.report import write_picture
from millpond.state import Harness
from millpond.state.spillable.statistics import TEMPERATURES


def a_map():
    rows = [
        (group, state, "disk" if group % 3 == 0 else "heap", "/a" if group % 3 == 0 else None, 100 + group, 7.0 * group)
        for group in range(128)
        for state in ("flights", "newest")
    ]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=TEMPERATURES)


def test_the_states_of_a_key_group_are_added_up_and_its_rate_is_counted_once():
    groups = key_group_map.by_group(a_map())
    assert groups.slice(6, 1).to_pylist() == [{"key_group": 6, "place": "disk", "bytes": 212, "rate": 42.0}]
    heap, disk = key_group_map.summed(groups)
    assert heap[:2] == ("heap", 85)
    assert disk[:2] == ("disk", 43)
    assert heap[3] + disk[3] == sum(7 * group for group in range(128))


def test_every_place_is_reported_though_nothing_is_there():
    groups = key_group_map.by_group(a_map().slice(2, 2))
    assert key_group_map.summed(groups) == [("heap", 1, 202 / 1e6, 7.0), ("disk", 0, 0.0, 0)]


def test_the_picture_has_a_square_for_each_key_group(tmp_path):
    def draw(axes):
        key_group_map.draw(axes, key_group_map.by_group(a_map()))
        assert axes.images[0].get_array().shape == (8, 16)
        assert len(axes.collections[0].get_offsets()) == 43

    write_picture(tmp_path / "map.png", "Key groups", draw)
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_the_operator_remembers_the_newest_flights_of_a_route(monkeypatch):
    monkeypatch.setattr(key_group_map, "NEWEST", 3)
    flights = [key_group_map.Flight("AA", "JFK", "LAX", number, None, float(number)) for number in range(5)]
    with Harness(key_group_map.Routes, key=lambda flight: flight[:3], key_type=tuple[str, str, str]) as harness:
        harness.process_many(flights)
        assert harness.state("flights") == {("AA", "JFK", "LAX"): 5}
        assert harness.state("newest") == {
            ("AA", "JFK", "LAX"): {0: (3, None, 3.0), 1: (4, None, 4.0), 2: (2, None, 2.0)}
        }
