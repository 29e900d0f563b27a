"""The examples that need no Spark run as their first lines say, and each public package has one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_public_api import PUBLIC

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def printed_by(name, *arguments):
    """What the program prints, run as a user would: from the root of the project, with nothing on the path."""
    command = [sys.executable, f"examples/{name}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_cache_asks_for_each_price_once():
    assert printed_by("cached_prices") == [
        "['tea', 'milk', 'tea'] 620",
        "['tea', 'sugar', 'sugar'] 250",
        "3 of 6 prices were asked for",
    ]


def test_counts_go_on_from_the_checkpoint_of_the_run_before(tmp_path):
    assert printed_by("page_counts", tmp_path) == ["ada / 1 1", "bob / 1 1", "ada /mills 1 2"]
    assert printed_by("page_counts", tmp_path) == ["ada / 2 3", "bob / 2 2", "ada /mills 2 4"]


def test_a_wrapper_of_a_backend_sees_every_version():
    assert printed_by("counting_backend") == ["[('ada', 1), ('bob', 1), ('ada', 2)]", "2 versions"]


def test_a_lookup_asks_the_database_for_each_plane_once():
    assert printed_by("plane_lookup") == [
        "['A320', 'B738', 'A320', None, None]",
        "the database was asked for 3 of 5 planes",
    ]


@pytest.mark.parametrize("store", ["memory://", "lmdb://"])
def test_rows_are_read_back_by_their_times(store, tmp_path):
    url = store if store == "memory://" else f"lmdb://{tmp_path}/kv"
    assert printed_by("route_rows", url) == ["[0, 12]"]


def test_features_merge_the_batch_and_the_stream():
    assert printed_by("route_features") == ["{'count_7d': 3, 'delay_average_7d': 30.0}"]


def test_a_fetcher_answers_for_a_known_and_an_unknown_key():
    assert printed_by("fetching") == [
        "EWR {'count_7d': 2, 'delay_average_7d': 20.0}",
        "XXX {'count_7d': None, 'delay_average_7d': None}",
    ]


def test_a_recorder_of_ones_own_is_told_what_a_table_counts():
    assert printed_by("counted_lookups")[4:] == [
        "millpond_lookup_loads_total ok 3",
        "millpond_lookup_requests_total hit 1",
        "millpond_lookup_requests_total miss 3",
    ]


@pytest.mark.parametrize("package", sorted(name for name, names in PUBLIC.items() if names and name != "millpond"))
def test_every_public_package_has_an_example(package):
    imports = re.compile(rf"^\s*from {re.escape(package)}(?:\.\w+)* import ", re.MULTILINE)
    assert [example.name for example in EXAMPLES if imports.search(example.read_text())] != []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_says_how_it_is_run(example):
    assert re.search(rf"^    (?:python|spark-submit) examples/{example.name}\b", example.read_text(), re.MULTILINE)
