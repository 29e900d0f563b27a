"""`millpond caches`: advice from a server and from a file, and traces that are replayed."""

import json
import random
import sys

import pytest
from click.testing import CliRunner

from millpond.cache import new_cache
from millpond.cache.curves import curves_view, record
from millpond.cache.curves.trace import MAGIC, write_trace
from millpond.cli import cli
from millpond.errors import DataError, MillpondError, MissingDependencyError, OptionError, UnavailableError
from millpond.features import Aggregation, Field, GroupBy
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, http_app, running_server
from millpond.serving.caches.batch_rows import BatchRow

ROUTE = GroupBy("advised", keys=(Field("origin", "string"),), aggregations=(Aggregation("count", windows=("1h",)),))


def run(*arguments):
    ran = CliRunner().invoke(cli, ["caches", *map(str, arguments)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran


def refused(error, *arguments):
    with pytest.raises(error) as raised:
        CliRunner().invoke(cli, ["caches", *map(str, arguments)], catch_exceptions=False)
    return str(raised.value)


@pytest.fixture(scope="module")
def fetcher():
    """A fetcher with a cache that its keys fit in twice over."""
    with Fetcher(MemoryStore(), [ROUTE], fetcher_cache_size=2_000, hit_rate_curves=True) as fetcher:
        (group,) = fetcher.groups
        generator = random.Random(7)
        for _ in range(20_000):
            key = b"%d" % generator.randrange(1_000)
            if group.batch_cache.get(key) is None:
                group.batch_cache.put(key, BatchRow(None, None))
        yield fetcher


@pytest.fixture
def file(fetcher, tmp_path):
    path = tmp_path / "caches.json"
    view = curves_view()
    path.write_text(json.dumps({"caches": [one for one in view["caches"] if one["name"] == "advised.batch"]}))
    return path


def test_advice_comes_from_a_running_server(fetcher):
    with running_server(http_app(fetcher)) as url:
        told = json.loads(run("advise", url, "--hit-rate", "0.5", "--json").stdout)
    (advice,) = [one for one in told["advice"] if one["cache"] == "advised.batch"]
    assert advice["present_rate"] == pytest.approx(0.95, abs=0.02)
    # Which keys the curve follows differs from process to process, with Python's hash of bytes. How exact the curves
    # are is tested in tests/cache/curves.
    assert told["smallest"]["advised.batch"][0] == pytest.approx(525, rel=0.6)


def test_advice_from_a_file_says_what_to_do_in_words(file):
    text = run("advise", file, "--hit-rate", "0.99").stdout
    assert "advised.batch  w-tinylfu  2,000 entries" in text
    assert "advised.batch: Larger than needed" in text
    assert "advised.batch: no size; 9" in text


def test_a_budget_is_split_by_the_curves(tmp_path):
    small = record(new_cache("split small", max_bytes=1_000, weigher=lambda _key, _value: 10))
    for number in range(20_000):
        if small.get(number % 500) is None:
            small.put(number % 500, True)
    path = tmp_path / "caches.json"
    path.write_text(json.dumps({"caches": [one for one in curves_view()["caches"] if one["name"] == "split small"]}))
    (share,) = json.loads(run("advise", path, "--budget", "8kb", "--json").stdout)["split"]
    assert float(share["hit rate"].split()[0]) > 90
    assert "best split of 8kb" in run("advise", path, "--budget", "8kb").stdout
    assert "--budget" in refused(OptionError, "advise", path, "--budget", "much")


def test_what_gives_no_advice_says_why(tmp_path):
    (tmp_path / "empty.json").write_text('{"caches": []}')
    (tmp_path / "text.json").write_text("no JSON")
    assert "--hit-rate-curves" in refused(DataError, "advise", tmp_path / "empty.json")
    assert "text.json" in refused(DataError, "advise", tmp_path / "text.json")
    assert "missing.json" in refused(OptionError, "advise", tmp_path / "missing.json")
    assert "127.0.0.1:1/v1/caches" in refused(UnavailableError, "advise", "http://127.0.0.1:1")


def test_a_server_that_wants_a_key_gets_it_or_says_so(fetcher):
    with running_server(http_app(fetcher, api_keys=["a key of the test"])) as url:
        assert "401" in refused(MillpondError, "advise", url)
        assert "advised.batch" in run("advise", url, "--api-key", "a key of the test").stdout


def test_a_trace_is_replayed_on_every_policy_and_size(tmp_path):
    cache, writer = write_trace(new_cache("traced", max_entries=3), tmp_path / "keys.trace")
    for key in ["a", "b", "c"] * 10:
        cache.get(key)
    writer.close()
    ran = run("simulate", tmp_path / "keys.trace", "--size", 2, "--size", 3, "--policy", "lru", "--json")
    assert [(one["entries"], one["hits"]) for one in json.loads(ran.stdout)["simulated"]] == [(2, 0), (3, 27)]
    assert "2 of 2: lru 3: 90.0 %" in ran.stderr
    table = run("simulate", tmp_path / "keys.trace", "--quiet", "--picture", tmp_path / "rates.png")
    assert "w-tinylfu" in table.stdout
    assert table.stderr == ""
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_does_not_take_the_table_along(tmp_path, monkeypatch):
    cache, writer = write_trace(new_cache("traced", max_entries=3), tmp_path / "keys.trace")
    cache.get("a")
    writer.close()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = CliRunner().invoke(cli, ["caches", "simulate", str(tmp_path / "keys.trace"), "--picture", "rates.png"])
    assert isinstance(ran.exception, MissingDependencyError)
    assert "w-tinylfu" in ran.stdout


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "cut.trace").write_bytes(MAGIC + b"123")
    (tmp_path / "other.trace").write_bytes(b"something else")
    (tmp_path / "other.trc.xz").write_bytes(b"something else")
    for name in ("cut.trace", "other.trace", "other.trc.xz", "missing.trace"):
        assert name in refused(DataError, "simulate", tmp_path / name)
