"""What takes long to count is counted for the page a tenth of the time at most; what does not is counted anew."""

import asyncio

import pytest

from millpond.kv import MemoryStore
from millpond.serving import Fetcher, http_app
from millpond.serving.http.page.page_routes import NewestFamilies


@pytest.mark.parametrize(("took", "until"), [(0.02, 0.18), (0.5, 1.0)], ids=["nine times as long", "a second at most"])
def test_what_took_long_is_used_again_for_a_while(took, until):
    now, spent = [100.0], [0.0]

    def worked():
        spent[0] += took
        return spent[0]

    newest = NewestFamilies(http_app(Fetcher(MemoryStore(), [])), lambda: now[0], worked)

    def get():
        return asyncio.run(newest.get())

    first = get()
    now[0] += until - 0.01
    assert get() is first
    now[0] += 0.02
    again = get()
    assert again is not first
    assert [family.name for family in again] == [family.name for family in first]


def test_what_took_little_is_counted_anew():
    newest = NewestFamilies(http_app(Fetcher(MemoryStore(), [])), lambda: 1.0, lambda: 1.0)
    assert asyncio.run(newest.get()) is not asyncio.run(newest.get())
