"""The page of faults is what its script writes, and every test that it names is there."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "faults.py"))
FAULTS = [fault for faults in SCRIPT["PARTS"].values() for fault in faults]


def test_the_page_is_up_to_date():
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"](), "run: python scripts/faults.py"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_a_test(fault):
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
