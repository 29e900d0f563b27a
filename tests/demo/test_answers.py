"""Asking and checking, over a store that was filled by hand: no Spark."""

import itertools
import socket
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.demo.answers import Facts, ask_and_check, serve_until_stopped
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.definitions import AIRCRAFT, ROUTE
from millpond.errors import UnavailableError
from millpond.features import (
    SERVING_INFO_DATASET,
    ServingInfo,
    Tile,
    batch_dataset,
    compile_group_by,
    serving_info_key,
    stream_dataset,
    tile_start,
)
from millpond.kv import LmdbStore, Put

END = 16_000 * DAY_MS

EVENTS = pa.table(
    {
        "flight_id": list(range(40)),
        "sched_ms": [END + (n - 20) * 97 * MINUTE_MS for n in range(40)],
        "time_ms": [END + ((n - 20) * 97 + n) * MINUTE_MS for n in range(40)],
        "origin": ["JFK", "EWR"] * 20,
        "carrier": ["UA"] * 40,
        "tailnum": pa.array(["N1", "N2", "N3", None] * 10),
        "dep_delay": [float(n) for n in range(40)],
        "delayed_15": [float(n > 15) for n in range(40)],
    }
)


def fill(store: LmdbStore, events: pa.Table) -> None:
    for group_by in (ROUTE, AIRCRAFT):
        plan = compile_group_by(group_by)
        of_key: dict[tuple, list] = defaultdict(list)
        for row in events.to_pylist():
            key = tuple(row[field.name] for field in group_by.keys)
            if None not in key:
                of_key[key].append((row["time_ms"], (row["dep_delay"], row["delayed_15"])))
        dataset = batch_dataset(group_by.name, END, 1)
        for key, seen in of_key.items():
            encoded = plan.encode_key(key)
            store.put_many(dataset, [Put(encoded, plan.encode_batch(encoded, plan.batch_ir(seen, END)), END)])
            tiles: dict[int, tuple] = {}
            for time_ms, inputs in seen:
                if time_ms >= END:
                    start = tile_start(time_ms, plan.tile_ms)
                    tiles[start] = plan.merge(tiles.get(start, plan.new_ir()), plan.collect([time_ms], [inputs]))
            made = [Tile(at, plan.tile_ms, ir=ir) for at, ir in tiles.items()]
            puts = [Put(encoded, plan.encode_tile(encoded, tile), tile.start_ms) for tile in made]
            store.put_many(stream_dataset(group_by.name, plan.generation), puts)
        info = ServingInfo(
            group_by.name,
            plan.definition_hash,
            END,
            1,
            dataset,
            stream_dataset(group_by.name, plan.generation),
            plan.generation,
            plan.batch_form,
            plan.layers,
        )
        store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key(group_by.name), info.encode())])


def asked_of(path: Path, stored: pa.Table) -> Facts:
    with closing(LmdbStore(path)) as store:
        fill(store, stored)
    clock = itertools.count()
    return ask_and_check(path, EVENTS, END, lambda: float(next(clock)), lambda _measure: None)


def test_every_feature_is_right_in_process_and_over_http(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, EVENTS)
    assert facts.mismatches == []
    assert (facts.requests, facts.checked) == (20 + 15, (20 + 15) * 24)
    assert [measure.stage for measure in facts.measures] == ["serve", "http"]
    assert facts.measures[1].caches["aircraft_batch_irs"].misses == 0


def test_an_event_that_never_reached_the_store_is_found_both_ways(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, EVENTS.slice(0, 25))
    assert facts.mismatch_count > 0
    assert facts.mismatch_count % 2 == 0


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port}"):
            serve_until_stopped(tmp_path, port, lambda _url: None)
