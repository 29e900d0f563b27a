"""`millpond doctor` finds what is wrong, says how to mend it, and sets its exit code."""

import errno
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from millpond import doctor
from millpond.cli import cli
from millpond.errors import DataError, MissingDependencyError
from millpond.spark.environment import versions
from millpond.spark.environment.session import SESSION_SETTINGS

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def _of(check, found):
    (finding,) = (finding for finding in found if finding.check == check)
    return finding


def _conf(folder, text):
    path = folder / "spark.conf"
    path.write_text(text)
    return path


def test_the_environment_of_the_tests_has_no_problem():
    found = doctor.findings(SESSION_SETTINGS)
    assert [finding for finding in found if finding.level == "problem"] == []
    assert {"Python", "Java", "PySpark", "temporary folder", "disk", "machine", "extra spark"} <= {
        finding.check for finding in found
    }


def test_without_java_it_says_how_to_install_one(monkeypatch):
    monkeypatch.setattr(doctor, "__file__", str(Path(tempfile.gettempdir(), "no-such-package", "doctor.py")))
    java = _of("Java", doctor.findings())
    assert java.level == "problem"
    assert "apt-get install openjdk-17-jre-headless" in java.fix


def test_workers_whose_python_lacks_packages_are_a_problem_if_chosen_and_else_a_warning(monkeypatch, tmp_path):
    for name in ("python3", "other"):
        (tmp_path / name).write_text("#!/bin/sh\necho no module msgspec >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "other"))
    chosen = _of("Python of workers", doctor.findings())
    assert (chosen.level, chosen.fix) == ("problem", f"export PYSPARK_PYTHON={sys.executable}")
    assert "no module msgspec" in chosen.found
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _of("Python of workers", doctor.findings()).level == "warning"


def test_the_python_of_workers_in_a_settings_file_is_checked(tmp_path):
    (tmp_path / "other").write_text("#!/bin/sh\necho no module msgspec >&2\nexit 1\n")
    (tmp_path / "other").chmod(0o755)
    settings = tmp_path / "spark-defaults.conf"

    def found(python: object) -> doctor.Finding:
        settings.write_text(f"spark.pyspark.python {python}\n")
        return _of("spark.pyspark.python", doctor.findings(doctor.read_settings(settings)))

    broken = found(tmp_path / "other")
    assert (broken.level, broken.fix) == ("problem", f"spark.pyspark.python {sys.executable}")
    assert "no module msgspec" in broken.found
    assert found(sys.executable).level == "ok"
    assert found("./environment/bin/python").level == "warning"  # an executor may have it


def test_a_java_that_only_millponds_session_finds_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    other = tmp_path / "java"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    java = _of("Java", doctor.findings())
    assert (java.level, java.fix.partition("=")[0]) == ("warning", "export JAVA_HOME")
    assert str(other) in java.found


def test_a_java_home_that_has_no_java_is_a_warning_though_another_java_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = _of("Java", doctor.findings())
    assert (java.level, java.fix.partition("=")[0]) == ("warning", "export JAVA_HOME")
    assert f"JAVA_HOME={tmp_path}" in java.found


def test_a_java_home_with_its_java_is_fine(monkeypatch):
    found = _of("Java", doctor.findings())
    home = found.fix.partition("=")[2] or found.found
    monkeypatch.setenv("JAVA_HOME", home)
    assert _of("Java", doctor.findings()).level == "ok"


def test_a_tmpdir_that_python_passes_over_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    folder = _of("temporary folder", doctor.findings())
    assert folder.level == "warning"
    assert f"TMPDIR={tmp_path / 'missing'} cannot be written: No such file or directory" in folder.found
    assert folder.fix == f"mkdir -p {tmp_path / 'missing'}"


def test_a_tmpdir_that_is_a_file_is_not_to_be_made_as_a_folder(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("TMPDIR", str(file))
    folder = _of("temporary folder", doctor.findings())
    assert folder.level == "warning"
    assert f"TMPDIR={file} cannot be written: Not a directory" in folder.found
    assert folder.fix == "make room there, or point TMPDIR at a folder that you can write to"


def test_a_full_tmpdir_is_a_warning_though_it_may_be_written(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/dev/full")
    written = tempfile.TemporaryFile

    def opened(*, dir):  # noqa: A002 - the name that tempfile has
        return Path(dir).open("wb") if str(dir) == "/dev/full" else written(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    folder = _of("temporary folder", doctor.findings())
    assert (folder.level, "No space left on device" in folder.found) == ("warning", True)


def test_where_no_temporary_folder_can_be_written_the_other_checks_go_on(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    found = doctor.findings()
    folder = _of("temporary folder", found)
    assert (folder.level, folder.found) == ("problem", "No usable temporary directory found in ['/tmp']")
    assert _of("machine", found)


def test_a_temporary_folder_whose_entries_others_can_replace_is_a_problem(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = _of("temporary folder", doctor.findings())
    assert folder.level == "problem"
    assert folder.found == f"{tmp_path} has mode 777: other users can replace what lies in it"
    assert "chmod +t" in folder.fix


def test_a_temporary_folder_that_others_can_enter_is_a_problem(monkeypatch, tmp_path):
    own = tmp_path / f"millpond-{os.getuid()}"
    own.mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = _of("temporary folder", doctor.findings())
    assert folder.level == "problem"
    assert folder.fix == f"chmod 700 {own}, or point TMPDIR elsewhere"
    own.chmod(0o700)
    assert _of("temporary folder", doctor.findings()).level == "ok"


def test_a_disk_that_is_nearly_full_is_a_warning(monkeypatch):
    usage = shutil.disk_usage(tempfile.gettempdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=(1 << 30) - 1))
    disk = _of("disk", doctor.findings())
    assert (disk.level, disk.found) == ("warning", f"1.1 GB free in {tempfile.gettempdir()}")
    assert "free some, or point TMPDIR elsewhere" in disk.fix


def test_a_machine_of_one_core_is_a_warning():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        machine = _of("machine", doctor.findings())
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.level == "warning"
    assert machine.found.startswith("1 core, ")
    assert machine.fix == "Spark, its Python workers and the state hosts share the one core: use two or more"


def test_a_python_that_is_newer_than_the_tested_ones_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "NEWEST_PYTHON", (3, 10))
    python = _of("Python", doctor.findings())
    assert (python.level, python.fix) == (
        "warning",
        "Millpond is tested up to Python 3.10; use that if something fails",
    )


def test_a_pyspark_without_what_its_operator_needs_is_a_problem(monkeypatch):
    def lacking():
        raise MissingDependencyError('keyed state needs pandas. Run: pip install "millpond[spark]"')

    monkeypatch.setattr(versions, "require_state_packages", lacking)
    pyspark = _of("PySpark", doctor.findings())
    assert (pyspark.level, pyspark.found) == ("problem", "keyed state needs pandas.")
    assert pyspark.fix == 'pip install "millpond[spark]"'


def test_an_extra_that_is_not_there_is_named_with_its_packages(monkeypatch):
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package != "lmdb")
    found = _of("extra lmdb", doctor.findings())
    assert (found.level, found.found, found.fix) == ("ok", "not installed: lmdb", 'pip install "millpond[lmdb]"')


def test_the_settings_of_a_millpond_session_are_fine():
    assert {finding.level for finding in doctor.settings_findings(SESSION_SETTINGS)} == {"ok"}


def test_a_session_without_rocksdb_is_a_problem_and_what_is_slower_a_warning():
    levels = {finding.check: finding.level for finding in doctor.settings_findings({ARROW_BYTES: "64m"})}
    assert levels == {name: "problem" if name == PROVIDER else "warning" for name in SESSION_SETTINGS}


def test_a_fix_is_a_line_of_the_settings_file(tmp_path):
    fixes = "\n".join(finding.fix for finding in doctor.settings_findings({}))
    assert doctor.read_settings(_conf(tmp_path, fixes)) == dict(SESSION_SETTINGS)


def test_a_settings_file_is_read_as_spark_reads_it(tmp_path):
    text = f"# ours\n\nspark.master  local[2]\n{PROVIDER}=some.Provider\nspark.app.name: my job\n"
    read = doctor.read_settings(_conf(tmp_path, text))
    assert read == {"spark.master": "local[2]", PROVIDER: "some.Provider", "spark.app.name": "my job"}


@pytest.mark.parametrize("line", ["master local", "spark.master"])
def test_a_line_that_is_no_setting_is_refused_by_number(tmp_path, line):
    path = _conf(tmp_path, f"spark.app.name job\n{line}\n")
    with pytest.raises(DataError, match=f"{path}, line 2: expected a name that begins with 'spark.' and a value"):
        doctor.read_settings(path)


def test_a_settings_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        doctor.read_settings(tmp_path / "missing.conf")


@pytest.mark.parametrize(("settings", "code"), [({}, 1), (SESSION_SETTINGS, 0)], ids=["bare", "millpond"])
def test_the_command_ends_with_1_if_there_is_a_problem(tmp_path, settings, code):
    conf = _conf(tmp_path, "\n".join(f"{name} {value}" for name, value in settings.items()))
    ran = CliRunner().invoke(cli, ["doctor", "--conf", str(conf)])
    assert ran.exit_code == code
    assert ("problem" in ran.output) is bool(code)


def test_the_command_prints_json():
    ran = CliRunner().invoke(cli, ["doctor", "--json"])
    assert {"check", "level", "found", "fix"} == set(json.loads(ran.output)[0])
