"""`make soak` runs every long test, counts what they tried, and keeps its page if one fails."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests import soak

ROOT = Path(__file__).parents[1]

COUNTING = """
def test_one(record_property):
    record_property("kills", 3)
    record_property("seed", "not counted")

def test_two(record_property):
    record_property("kills", 4)
    record_property("inputs", 1000)
    assert {holds}
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Two parts instead of the real ones; the test `two` of the second one may be made to fail."""

    def made(*, holds=True):
        for name, passes in (("first", True), ("second", holds)):
            (tmp_path / f"test_{name}.py").write_text(COUNTING.format(holds=passes))
        plain = ("-p", "no:cacheprovider", "-c", str(tmp_path / "none.ini"))
        (tmp_path / "none.ini").write_text("[pytest]\n")
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        named = {name: soak.Part(f"The {name}.", (str(tmp_path / f"test_{name}.py"), *plain), alone) for name in order}
        monkeypatch.setattr(soak, "PARTS", named)
        monkeypatch.setattr(soak, "PAGE", tmp_path / "soak.md")
        return tmp_path / "soak.md"

    order = ("second", "first")
    return made


def test_what_the_tests_counted_is_on_the_page(parts, tmp_path, capsys):
    page = parts()
    assert soak.main(["--logs", str(tmp_path / "logs")]) == 0
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[0], row[2], row[3], row[5]) for row in cells[2:]] == [
        ("The second.", "2", "7", "1,000"),
        ("The first.", "2", "7", "1,000"),
        ("All", "4", "14", "2,000"),
    ]
    assert "first: passed; 2 tests, 1,000 inputs, 7 kills" in capsys.readouterr().out


def test_a_part_that_fails_is_named_and_the_page_stays(parts, tmp_path, capsys):
    page = parts(holds=False)
    assert soak.main(["--logs", str(tmp_path / "logs")]) == 1
    assert not page.exists()
    said = capsys.readouterr().out
    assert "second: FAILED with code 1, see" in said
    assert "first: passed; 2 tests" in said
    assert "assert False" in (tmp_path / "logs" / "second.log").read_text()


def test_a_run_goes_on_with_the_parts_that_have_not_passed(parts, tmp_path, capsys):
    page = parts()
    assert soak.main(["--only", "first", "--logs", str(tmp_path / "logs")]) == 0
    assert "| The second. | not run |  |  |  |  |  |" in page.read_text()
    assert not (tmp_path / "logs" / "second.log").exists()
    capsys.readouterr()
    assert soak.main(["--logs", str(tmp_path / "logs")]) == 0
    assert "not run" not in page.read_text()
    assert "first" not in capsys.readouterr().out.replace(str(tmp_path), "")


def test_after_the_time_of_a_part_no_further_test_begins(parts, tmp_path, monkeypatch):
    page = parts()
    timed = {name: replace(part, minutes=0) for name, part in soak.PARTS.items()}
    monkeypatch.setattr(soak, "PARTS", timed)
    assert soak.main(["--logs", str(tmp_path / "logs")]) == 0
    assert [line.split("|")[2:4] for line in page.read_text().splitlines() if line.startswith("| The")] == [
        [" 0 (limit 0) ", " 0 "]
    ] * 2
    assert "MILLPOND_TEST_SEED=" in (tmp_path / "logs" / "first.log").read_text()


def test_every_long_test_is_in_a_part():
    places = [
        ROOT / place
        for part in soak.PARTS.values()
        for place in part.arguments
        if place.startswith("tests/") and {"soak", "soak or not soak"} & set(part.arguments)
    ]
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.soak\b", file.read_text())]
    assert len(marked) > 10
    assert [file for file in marked if not any(file.is_relative_to(place) for place in places)] == []


def test_the_page_is_of_the_present_parts():
    told = [line.split("|")[1].strip() for line in soak.PAGE.read_text().splitlines() if line.startswith("| ")]
    assert told[2:-1] == [part.tells for part in soak.PARTS.values()]
    empty = soak.Done(1.0, 1, Counter())
    assert soak.page(dict.fromkeys(soak.PARTS, empty)).splitlines()[0] == soak.PAGE.read_text().splitlines()[0]
