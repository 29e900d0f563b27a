"""`millpond stream`: it goes on from the upload, tells its counts, and refuses what it cannot do."""

import pytest

from millpond.commands.definitions import load_definitions
from millpond.kv import open_store
from millpond.serving import Fetcher
from tests.commands.conftest import DAY_MS, HOUR_MS

pytestmark = pytest.mark.spark


def test_a_stream_goes_on_from_the_upload_and_tells_what_it_counted(run, options, files):
    store_url = f"lmdb://{files / 'kv'}"
    run("upload", *options, "--store", store_url, "--batch-end", "1970-01-03")
    asked = (*options, "--store", store_url, "--checkpoint", files / "checkpoint", "--available-now")
    told = run("stream", *asked)
    assert told["millpond_stream_events_read_total"] == 4
    assert told["millpond_stream_events_before_start_total"] == 3
    store = open_store(store_url)
    (route,) = [one for one in load_definitions([str(files / "definitions.py")]).group_bys if one.name == "route"]
    with Fetcher(store, [route]) as fetcher:
        answer = fetcher.fetch("route", {"origin": "EWR"}, 2 * DAY_MS + HOUR_MS)
    store.close()
    assert answer.features == {"count_1d": 2, "delay_sum": 13.0}
    assert run("stream", *asked).get("millpond_stream_events_read_total", 0) == 0


def test_a_stream_before_any_upload_needs_a_start(run, refused, options, files):
    asked = (*options, "--store", f"lmdb://{files / 'kv'}", "--checkpoint", files / "checkpoint", "--available-now")
    assert "upload it first, or give --start" in refused("stream", *asked)
    assert run("stream", *asked, "--start", "1970-01-03")["millpond_stream_events_before_start_total"] == 3


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--start", "1970-01-03T00:30"], ["batch_end_ms"]),
        (["--lateness", "soon"], ["'soon'"]),
        (["--name", "planes", "--start", "1970-01-03"], ["'fleet_changes'", "no stream"]),
        (["--table", "route=/nowhere", "--start", "1970-01-03"], ["--table '/nowhere'"]),
    ],
)
def test_what_cannot_be_streamed_is_refused_by_name(refused, options, files, changed, named):
    asked = (*options, "--store", f"lmdb://{files / 'kv'}", "--checkpoint", files / "checkpoint")
    told = refused("stream", *asked, *changed)
    assert all(one in told for one in named), told
    assert "--checkpoint" in refused("stream", *options, "--store", "memory://")


def test_what_has_no_stream_is_refused_before_spark_starts(refused_without_spark, tmp_path):
    (tmp_path / "names.py").write_text(
        "from millpond.features import Aggregation, EventSource, Field, GroupBy\n"
        "both = {'keys': (Field('k', 'long'),), 'aggregations': (Aggregation('count'),)}\n"
        "slow = GroupBy('slow', **both, accuracy='snapshot')\n"
        "still = GroupBy('still', **both, sources=(EventSource('past'),))\n"
    )
    asked = ("stream", tmp_path / "names.py", "--store", "memory://", "--checkpoint", tmp_path / "checkpoint")
    assert 'it is of accuracy "snapshot"' in refused_without_spark(*asked, "--name", "slow")
    assert "its source 'past' has no stream" in refused_without_spark(*asked, "--name", "still")
