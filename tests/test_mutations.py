"""The guards that `make mutations` breaks are where its list says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MUTATIONS = runpy.run_path(str(ROOT / "scripts" / "mutations.py"))["MUTATIONS"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_guard_stands_once_in_its_file_and_its_tests_are_there(mutation):
    text = (ROOT / "src" / "millpond" / mutation.file).read_text()
    compile(mutation.broken_in(text), mutation.file, "exec")
    assert [test for test in mutation.tests if not (ROOT / test).exists()] == []


def test_no_two_mutations_have_one_name():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
