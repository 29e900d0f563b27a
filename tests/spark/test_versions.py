"""What is said of a PySpark that Millpond does not run on, or that lacks what its own operators import."""

import runpy
from importlib.metadata import version

import pyspark
import pytest

from millpond.errors import MissingDependencyError
from millpond.spark.environment import versions


@pytest.mark.parametrize("old", ["3.5.9", "4.0.5"])
def test_a_pyspark_that_is_too_old_is_refused_by_its_version(monkeypatch, old):
    monkeypatch.setattr(pyspark, "__version__", old)
    with pytest.raises(
        MissingDependencyError, match=rf'4\.1 or later, found {old}\. Run: pip install "millpond\[spark\]"'
    ):
        runpy.run_module("millpond.spark.__init__")


def test_a_pyspark_that_is_newer_than_all_that_were_tested_is_not_refused(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "4.10.0")
    assert "keyed" in runpy.run_module("millpond.spark.__init__")["__all__"]


def test_the_installed_version_is_told_by_its_first_two_numbers():
    assert ".".join(map(str, versions.SPARK)) == ".".join(version("pyspark").split(".")[:2])


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({"pandas"}, "needs pandas, which"),
        ({"google.protobuf"}, "needs protobuf, which"),
        ({"pandas", "google.protobuf"}, "needs pandas and protobuf, which"),
    ],
)
def test_what_the_operators_of_pyspark_import_is_asked_for(monkeypatch, missing, told):
    monkeypatch.setattr(versions, "find_spec", lambda module: None if module in missing else object())
    with pytest.raises(MissingDependencyError, match=rf'{told} .* pip install "millpond\[spark\]"'):
        versions.require_state_packages()
