"""The size that a curve advises for a cache of a fetcher has the wanted hit rate, for each cache beside the other.

Time goes on meanwhile, so closed tiles take the place of others that were smaller, and most keys are not let in.
"""

import random

import pytest

from benchmarks.serving_world import BATCH_END_MS, HOUR_MS, World, group_bys, key_name
from millpond.cache.curves import smallest_size
from millpond.cache.curves.registry import recordings_of, report_on
from millpond.kv import MemoryStore
from millpond.serving import Fetcher

KEYS, FETCHES, HOURS = 4_000, 40_000, 4
POINTS = 0.02
"""On average. Which keys are sampled depends on the process's random hashes, so one figure may be twice as far off."""

(DEFINITION,) = group_bys()[:1]
KIND = DEFINITION.keys[0].name
IN_ENTRIES, IN_BYTES = {"batch": 300, "tiles": 250}, {"batch": "1500kB", "tiles": "250kB"}


def followed(sizes):
    """The hit rate of each cache over all fetches, and what its curve says."""
    world = World(MemoryStore(), [DEFINITION], KEYS)
    world.land()
    now_ms = BATCH_END_MS
    asked = random.Random(5).choices(range(KEYS), [1 / rank for rank in range(1, KEYS + 1)], k=FETCHES)
    with Fetcher(
        world.store,
        [DEFINITION],
        fetcher_cache_size=sizes["batch"],
        fetcher_tile_cache_size=sizes["tiles"],
        hit_rate_curves=True,
        now=lambda: now_ms,
        clock=lambda: now_ms,
    ) as fetcher:
        for number, one in enumerate(asked):
            if number % (FETCHES // HOURS) == 0:
                now_ms += HOUR_MS
                world.stream_until(now_ms)
            fetcher.fetch(DEFINITION.name, {KIND: key_name(KIND, one)})
        (group,) = fetcher.groups
        caches = {"batch": group.batch_cache, "tiles": group.tile_cache}
        found = {name: cache for name, cache in caches.items() if cache is not None}
        reports = {name: report_on(name, *recordings_of([cache]).values()) for name, cache in found.items()}
    return {name: cache.stats().hit_rate for name, cache in found.items()}, reports


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(IN_ENTRIES, id="entries", marks=pytest.mark.soak),
        pytest.param(IN_BYTES, id="bytes"),
        pytest.param(IN_ENTRIES | {"tiles": 0}, id="alone"),
    ],
)
def test_caches_of_the_advised_sizes_have_the_wanted_hit_rates_within_two_points_on_average(sizes):
    had, reports = followed(sizes)
    errors = []
    for name, report in reports.items():
        assert report.present_rate() == pytest.approx(had[name], abs=POINTS)
        for part in (0.75, 0.95):
            wanted = part * report.curve.highest()
            advised = smallest_size(report, wanted)
            size = f"{advised.bytes:.0f} B" if report.max_bytes is not None else round(advised.entries)
            then, _ = followed(sizes | {name: size})
            print(f"{name}: wanted {wanted:.3f}, advised {size}, had {then[name]:.3f}")
            errors.append(abs(then[name] - wanted))
    assert max(errors) <= 2 * POINTS
    assert sum(errors) / len(errors) <= POINTS
