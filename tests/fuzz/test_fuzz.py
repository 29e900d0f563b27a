"""A decoder of wrong bytes gives a value or says that they are wrong: it raises nothing else, and ends no process.

All of them run in one process of its own, under a limit on its address space. `MILLPOND_FUZZ_INPUTS` sets how
many inputs each gets, `MILLPOND_TEST_SEED` the seed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.decoders import DECODERS

INPUTS = int(os.environ.get("MILLPOND_FUZZ_INPUTS", "2000"))
SEED = os.environ.get("MILLPOND_TEST_SEED", "1")
TIMEOUT_S = 300 + INPUTS // 10


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each decoder did, and what ended the process."""
    trace = tmp_path_factory.mktemp("fuzz") / "last"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", str(INPUTS), SEED, str(trace)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    last = trace.read_bytes() if trace.exists() else b""
    last_input = last[8 : 8 + int.from_bytes(last[:8], "big")].hex()
    return {one["decoder"]: one for one in found if "decoder" in one}, (
        f"exit code {ended.returncode} in {found[-1] if found else 'the imports'}; seed {SEED}; the last input was "
        f"{last_input[:2000]}\n{ended.stderr[-2000:]}"
    )


@pytest.mark.parametrize("name", DECODERS)
def test_wrong_bytes_are_read_or_refused(name, reports, record_property):
    by_name, end = reports
    assert name in by_name, end
    report = by_name[name]
    record_property("inputs", report["inputs"])
    assert report["findings"] == []
    assert report["inputs"] == INPUTS
    assert report["refused"] > INPUTS // 20


def test_the_inputs_are_counted(reports, capsys):
    by_name, end = reports
    with capsys.disabled():
        total = sum(report["inputs"] for report in by_name.values())
        print(f"\n{len(by_name)} decoders, {total:,} wrong inputs, seed {SEED}")
    assert set(by_name) == set(DECODERS), end
