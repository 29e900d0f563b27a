"""Finding the Java that Spark runs on, with stand-ins that answer as `java` does."""

from importlib import import_module
from pathlib import Path

import pytest

from millpond.errors import MissingDependencyError
from millpond.spark.environment.java import find_java
from millpond.spark.environment.session import session


def _install(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        "#!/bin/sh\n"
        f"printf 'Property settings:\\n    java.home = {home}\\n"
        f"    java.specification.version = {version}\\n' >&2\n"
    )
    binary.chmod(0o755)
    return binary


def test_java_home_comes_before_path(tmp_path):
    _install(tmp_path / "home", "21")
    on_path = _install(tmp_path / "path", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}, ())
    assert (found.home, found.version) == (tmp_path / "home", 21)


def test_a_java_home_that_is_too_old_or_gone_gives_way_to_path(tmp_path):
    _install(tmp_path / "old", "1.8")
    on_path = _install(tmp_path / "path", "17")
    for home in ("old", "gone"):
        found = find_java({"JAVA_HOME": str(tmp_path / home), "PATH": str(on_path.parent)}, ())
        assert found.home == tmp_path / "path"


def test_a_java_off_the_path_is_found_in_the_usual_places(tmp_path):
    _install(tmp_path / "jvm" / "java-11", "11")
    _install(tmp_path / "jvm" / "java-17", "17")
    assert find_java({}, (f"{tmp_path}/jvm/*/bin/java",)).home == tmp_path / "jvm" / "java-17"


def test_every_java_that_is_too_old_is_named(tmp_path):
    _install(tmp_path / "eight", "1.8")
    eleven = _install(tmp_path / "eleven", "11")
    with pytest.raises(LookupError, match=r"Java 8 at \S+eight \(JAVA_HOME\); Java 11 at \S+eleven \(PATH\)"):
        find_java({"JAVA_HOME": str(tmp_path / "eight"), "PATH": str(eleven.parent)}, ())


def test_a_file_that_is_no_java_is_passed_over(tmp_path):
    stub = tmp_path / "java"
    stub.write_text("#!/bin/sh\necho 'No Java runtime present' >&2; exit 1\n")
    stub.chmod(0o755)
    with pytest.raises(LookupError, match="found none"):
        find_java({"PATH": str(tmp_path)}, ())


def test_a_session_without_java_says_what_to_install(monkeypatch):
    # `millpond.spark.session` as an attribute is the function; this is the module of the same name.
    monkeypatch.setattr(import_module("millpond.spark.environment.session"), "find_java", lambda: find_java({}, ()))
    with pytest.raises(MissingDependencyError, match="apt-get install openjdk-17-jre-headless"):
        session()
