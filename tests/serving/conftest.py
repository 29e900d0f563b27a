"""What several tests of the fetcher fetch from."""

from datetime import date

import pytest

from millpond.features import HOUR_MS
from millpond.serving import Fetcher

from .world import AIRCRAFT_PLAN, BATCH_END_MS, FLIGHT, NOON_MS, OWNER_PLAN, small_world, upload, upload_values


@pytest.fixture
def world():
    store, info, stream = small_world()
    upload(store, AIRCRAFT_PLAN, {("N7",): [(BATCH_END_MS - HOUR_MS, (30.0,))]})
    upload_values(store, OWNER_PLAN, {("N7",): ("Ann", date(2020, 1, 2), [1, 2])})
    return store, info, stream


@pytest.fixture(params=[{}, {"enable_fetcher_caching": True}], ids=["uncached", "cached"])
def fetcher(request, world):
    return Fetcher(world[0], [FLIGHT], now=lambda: NOON_MS, **request.param)
