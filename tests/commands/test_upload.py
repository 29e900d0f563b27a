"""`millpond upload`: what it writes and tells, and what it refuses."""

import pytest

from millpond.kv import open_store
from tests.commands.conftest import DAY_MS

pytestmark = pytest.mark.spark


def test_an_upload_tells_its_serving_info_and_a_re_run_replaces_it(run, options, files):
    store_url = f"lmdb://{files / 'kv'}"
    first = run("upload", *options, "--store", store_url, "--batch-end", "1970-01-03")
    assert (first["group_by"], first["rows"], first["batch_end_ms"]) == ("route", 2, 2 * DAY_MS)
    again = run("upload", *options, "--store", store_url, "--batch-end", 2 * DAY_MS)
    assert again["batch_landing_ms"] >= first["batch_landing_ms"]
    assert again["checksum"] == first["checksum"]
    store = open_store(store_url)
    assert {one for one in store.datasets() if one.startswith("route.batch")} == {
        first["batch_dataset"],
        again["batch_dataset"],
    }
    store.close()


def test_without_a_batch_end_it_uploads_up_to_the_last_midnight(run, options, files):
    info = run("upload", *options, "--store", f"lmdb://{files / 'kv'}")
    assert info["batch_end_ms"] % DAY_MS == 0
    assert info["batch_end_ms"] <= info["batch_landing_ms"] < info["batch_end_ms"] + 2 * DAY_MS
    assert info["rows"] == 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--batch-end", "1970-01-02T00:30"], ["batch_end_ms"]),
        (["--batch-end", "tomorrow"], ["'tomorrow'", "no time", "2026-06-01"]),
        (["--batch-end", "2999-01-01"], ["future"]),
        (["--name", "rout"], ["'rout'", "['planes', 'route']"]),
        (["--table", "route"], ["--table 'route'", "NAME=PATH"]),
        (["--table", "route=/nowhere/at/all"], ["--table '/nowhere/at/all'", "Parquet"]),
        (["--conf", "spark.sql"], ["--conf 'spark.sql'", "KEY=VALUE"]),
        (["--store", "ldmb://kv"], ["ldmb"]),
    ],
)
def test_what_cannot_be_uploaded_is_refused_by_name_and_writes_nothing(refused, options, files, changed, named):
    store_url = f"lmdb://{files / 'kv'}"
    told = refused("upload", *options, "--store", store_url, "--batch-end", "1970-01-03", *changed)
    assert all(one in told for one in named), told
    store = open_store(store_url)
    assert not [one for one in store.datasets() if one.startswith("route.batch")]
    store.close()


def test_the_definitions_and_the_store_must_be_given(refused, options):
    assert "DEFINITIONS" in refused("upload", "--store", "memory://")
    assert "--store" in refused("upload", *options)


def test_several_group_bys_need_a_name(refused, files):
    told = refused("upload", files / "definitions.py", "--store", "memory://")
    assert "give --name; expected a GroupBy among ['planes', 'route']" in told
