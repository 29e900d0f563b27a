"""`dist/` has a bill of materials of everything that the wheel may bring, and says what it does not know."""

import json
import os
import re
import runpy
import tomllib

import pytest

from tests.dist.conftest import DIST, ROOT

pytestmark = [pytest.mark.dist, pytest.mark.timeout(400, func_only=True)]

MATERIALS = runpy.run_path(str(ROOT / "scripts" / "materials.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LOCKED = set(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
"""Names and versions; a package may have one for each range of Pythons."""


@pytest.fixture(scope="module")
def python(environment):
    return environment(",".join(EXTRAS)).folder / "bin" / "python"


def test_the_bill_of_materials_has_every_package_at_its_locked_version(python):
    versions = MATERIALS["write_bill"](python, DIST)
    assert {"pyarrow", "msgspec", "pyspark", "cryptography"} <= versions.keys()
    locked = {name for name, _ in LOCKED}
    assert {pair for pair in versions.items() if pair[0] in locked} <= LOCKED
    bill = json.loads((DIST / MATERIALS["BILL"]).read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "millpond"


def test_without_a_network_nothing_is_said_to_be_known(python, tmp_path, monkeypatch):
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert MATERIALS["write_advisories"](python, tmp_path).startswith("advisories: not known")
    assert json.loads((tmp_path / MATERIALS["ADVISORIES"]).read_text())["known"] is False


@pytest.mark.skipif("MILLPOND_ADVISORIES" not in os.environ, reason="MILLPOND_ADVISORIES=1 asks PyPI for each package")
def test_advisories_are_asked_for_on_request(python):
    print(MATERIALS["write_advisories"](python, DIST))
    assert (DIST / MATERIALS["ADVISORIES"]).exists()
