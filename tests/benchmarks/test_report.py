"""The reporting that all benchmarks share."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import names, run_all
from benchmarks.report import grouped_bars, report


def _report_example(folder: Path, **changes: object) -> None:
    arguments = {
        "title": "Rows per second",
        "columns": ("size", "peer", "millpond"),
        "rows": [("100k", 9_900, 98_000.0), ("500k", 0.5, 12)],
        "result": {"ratio": {"100k": 9.9}},
        "draw": lambda axes: grouped_bars(axes, ["100k"], {"peer": [9_900], "millpond": [98_000]}),
    }
    report("example", folder=folder, **(arguments | changes))


def test_the_last_line_printed_is_the_json_that_was_written(tmp_path, capsys):
    _report_example(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (tmp_path / "example.json").read_text().rstrip("\n")
    assert json.loads(last)["ratio"] == {"100k": 9.9}
    assert json.loads(last)["machine"]["cores"] >= 1


def test_the_table_aligns_numbers_and_separates_thousands(tmp_path, capsys):
    _report_example(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if "100k" in line)
    second = next(line for line in lines if "500k" in line)
    assert first.index("9,900") + len("9,900") == second.index("0.5") + len("0.5")
    assert "98,000" in first


def test_the_table_is_kept_as_markdown_with_the_command_that_gives_it(tmp_path):
    _report_example(tmp_path)
    lines = (tmp_path / "example.md").read_text().splitlines()
    assert lines[:3] == ["| size | peer | millpond |", "| --- | ---: | ---: |", "| 100k | 9,900 | 98,000 |"]
    assert lines[-1].endswith("`.venv/bin/python -m benchmarks.example`")


def test_the_picture_is_a_png_and_nothing_unfinished_stays(tmp_path):
    _report_example(tmp_path)
    assert (tmp_path / "example.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["example.json", "example.md", "example.png"]


def test_names_that_do_not_fit_side_by_side_lie_one_below_the_other():
    from matplotlib.figure import Figure

    few, many = ["100k", "500k"], [f"set-up {number}" for number in range(18)]
    for groups, ticks in ((few, lambda axes: axes.get_xticklabels()), (many, lambda axes: axes.get_yticklabels())):
        axes = Figure().subplots()
        grouped_bars(axes, groups, {"events/s": list(range(len(groups)))})
        assert [label.get_text() for label in ticks(axes)] == groups


def test_a_row_that_does_not_fit_the_columns_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"expected 3 cells \(size, peer, millpond\), got 2"):
        _report_example(tmp_path, rows=[("100k", 1)])
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        _report_example(tmp_path, result={"ratio": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_is_found_and_the_shared_code_is_not(tmp_path):
    for name in ("report", "king_report", "figures", "__main__", "second", "first"):
        (tmp_path / f"{name}.py").touch()
    assert names(tmp_path) == ["first", "second"]


def test_a_failing_benchmark_is_named():
    assert run_all(["no_such_benchmark"]) == ["no_such_benchmark"]
