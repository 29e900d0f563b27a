"""Writes rows under a key and a time with `millpond.kv`, and reads a range of times back.

    python examples/route_rows.py STORE_URL

The URL names the store: `memory://`, `lmdb://folder`, `redis://localhost:6379/0`.
"""

import sys

from millpond.kv import Get, KVStore, Put, open_store

MINUTE_MS = 60_000
DATASET = "route.delays"


def write_delays(store: KVStore, route: bytes, delays: list[int]) -> None:
    """Write one delay a minute, from time 0 on."""
    store.put_many(DATASET, [Put(route, b"%d" % delay, minute * MINUTE_MS) for minute, delay in enumerate(delays)])


def delays_between(store: KVStore, route: bytes, first_minute: int, end_minute: int) -> list[int]:
    """Read the delays from `first_minute` up to, but not including, `end_minute`."""
    get = Get(DATASET, route, start_ms=first_minute * MINUTE_MS, end_ms=end_minute * MINUTE_MS)
    (rows,) = store.get_many([get])
    return [int(row.value) for row in rows]


def main(url: str) -> None:
    """Write five delays, and print those of the minutes 1 and 2."""
    store = open_store(url)
    try:
        write_delays(store, b"EWR-SFO", [5, 0, 12, 40, 3])
        print(delays_between(store, b"EWR-SFO", 1, 3))
    finally:
        store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory://")
