"""The benchmark of features measures what it says, and holds each figure to its bar."""

import json
import shutil
import subprocess

import pytest

import millpond
from benchmarks import code_tree
from benchmarks.code_tree import tree_of, tree_of_package
from benchmarks.features import PARTS, Bar, bars, with_kept
from benchmarks.features_stored import arithmetic_error, stored_bytes, tiles_read

RESULT = {
    "ingest": {
        "dense": {"millpond": 50, "spark": 100},
        "sparse": {"millpond": 99, "spark": 100},
        "combine_ratio": 5.0,
    },
    "change": {"keys": 9_000, "events": 10, "written": 900, "changed": 30},
    "columnar": {
        "events_per_second": {},
        "row_by_row": {"count_sum_average_min_max": 1, "last_k": 1, "unique_count": 1},
        "ratio": {"count_sum_average_min_max": 5.0, "last_k": 2.0, "unique_count": 1.9},
    },
    "training_set": {
        "50000": {"seconds": 1.0, "spark_seconds": 4.9, "peak_bytes": float(8 << 30)},
        "10000": {"seconds": 1.0, "spark_seconds": 5.0, "peak_bytes": 1.0},
    },
    "upload": {"rows_per_second": 1, "spark_seconds": 1.0, "seconds": 3.0, "incremental_seconds": 0.6},
    "faults": {"lost": 0, "twice": 1, "mixed_generations": 0, "half_uploads_seen": 0},
}


def test_each_figure_is_held_to_its_bar():
    missed = [bar.what for bar in bars(RESULT) if not bar.held]
    assert missed == [
        "ingest sparse: events/s by Spark's",
        "change: bytes written by bytes changed",
        "columnar unique_count: times row by row",
        "training set, 50,000 keys: times the range join",
        "upload: a further day by all",
        "faults: twice",
    ]


def test_what_is_computed_without_spark_meets_its_bars():
    found = {"bytes": stored_bytes(10), "layers": tiles_read(), "arithmetic_error": arithmetic_error(40)}
    assert all(bar.held for bar in bars(found)), found
    assert set(found) | set(RESULT) == set(PARTS)
    assert found["layers"]["tiles_read"]["30d_only"] == 2


def test_a_run_replaces_the_parts_that_it_measured_and_keeps_the_others_of_the_same_code(tmp_path):
    kept = tmp_path / "features.json"
    assert with_kept({"upload": 1}, kept, "a") == {"upload": 1, "tree": "a"}
    kept.write_text(json.dumps({"faults": 3, "upload": 1, "held": {}, "machine": {}, "tree": "a"}))
    assert with_kept({"upload": 2, "ingest": 4}, kept, "a") == {"ingest": 4, "upload": 2, "faults": 3, "tree": "a"}
    assert with_kept({"upload": 2}, kept, "b") == {"upload": 2, "tree": "b"}


@pytest.fixture
def code(tmp_path):
    """A folder with a module, committed."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path / "code"


def test_code_is_known_by_its_tree_and_changed_code_matches_no_run(code):
    first = tree_of(code)
    (code.parent / "result").write_text("1")
    assert tree_of(code) == first
    (code / "a.py").write_text("a = 2")
    assert tree_of(code) == "changed"


def test_a_compiled_package_which_git_does_not_know_is_known_by_its_sources(code, tmp_path, monkeypatch):
    monkeypatch.setattr(code_tree, "SOURCES", code)
    monkeypatch.setattr(millpond, "__file__", str(code / "__init__.py"))
    assert tree_of_package() == tree_of(code)
    compiled = shutil.copytree(code, tmp_path / "compiled")
    monkeypatch.setattr(millpond, "__file__", str(compiled / "__init__.py"))
    assert tree_of_package() == f"{tree_of(code)}, compiled"
    (compiled / "a.py").write_text("a = 2")
    with pytest.raises(AssertionError, match=r"changed since `make compiled`: \['a.py'\]"):
        tree_of_package()
    (compiled / "a.py").unlink()
    with pytest.raises(AssertionError, match="run `make compiled`"):
        tree_of_package()


def test_a_margin_is_how_many_times_better_than_the_bar():
    assert Bar("speed", 6.0, "", at_least=5).margin == pytest.approx(1.2)
    assert Bar("seconds", 2.0, "", at_most=3).margin == pytest.approx(1.5)
    assert Bar("lost", 0, "", at_most=0).margin is None
    assert Bar("tiles", 0, "", at_most=2).margin is None
