"""`scripts/setup.sh` on machines of several kinds, played by stand-ins for Python, apt, sudo and id."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ["scripts/setup.sh", "requirements.lock", "requirements-build.lock", "pyproject.toml"]

PYTHON = f"""
case "$*" in
  "-c import ensurepip, venv") test -e "$MACHINE/venv" ;;
  "-I src/millpond/spark/environment/java.py")
    [ ! -e "$MACHINE/java" ] || exec echo /jvm; echo "only Java 11" >&2; exit 1 ;;
  "-m venv --clear .venv") rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip "*) echo "$*" >>"$MACHINE/log"; test ! -e "$MACHINE/no-network" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
APT_GET = 'echo "apt-get $*" >>"$MACHINE/log"; [ "$1" = update ] || touch "$MACHINE/venv" "$MACHINE/java"'
SUDO = 'test -e "$MACHINE/may-sudo" && shift && exec "$@"'


@dataclass(frozen=True)
class Machine:
    """A folder with a checkout and the programs of a machine; `has` are files that switch the stand-ins."""

    folder: Path

    def has(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def setup(self, **environ: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "scripts/setup.sh"],
            cwd=self.folder / "checkout",
            env={"PATH": path, "MACHINE": str(self.folder), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path) -> Machine:
    """A Debian without Java and venv, whose user is not root and may not use sudo."""
    for name in NEEDED:
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    (tmp_path / "bin").mkdir()
    programs = {"python3": PYTHON, "apt-get": APT_GET, "apt-cache": "exit 0", "sudo": SUDO, "id": "echo 1000"}
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return Machine(tmp_path)


def test_a_user_without_rights_is_told_the_one_command(machine):
    run = machine.setup()
    packages = f"python3.{sys.version_info.minor}-venv openjdk-17-jre-headless"
    assert run.returncode != 0
    assert "only Java 11" in run.stderr
    [command] = [line for line in run.stderr.splitlines() if line.startswith("    ")]
    assert command.startswith("    sudo sh -c 'apt-get update")
    assert command.endswith(f"{packages}'")
    assert machine.log() == []


def test_sudo_without_a_password_installs_what_is_missing_and_no_more(machine):
    machine.has("may-sudo", "venv")
    assert machine.setup().returncode == 0
    assert machine.log()[:2] == [
        "apt-get update -q",
        "apt-get install -y -q --no-install-recommends openjdk-17-jre-headless",
    ]


def test_every_package_is_installed_by_hash_and_none_is_built_with_unpinned_tools(machine):
    machine.has("venv", "java")
    machine.setup()
    assert [line.removeprefix("-m pip --disable-pip-version-check --quiet ") for line in machine.log()] == [
        "install --require-hashes -r requirements-build.lock",
        "install --require-hashes --no-build-isolation -r requirements.lock",
        "install --no-deps --no-build-isolation -e .",
    ]


def test_a_second_setup_has_nothing_to_do_until_a_lock_changes(machine):
    machine.has("venv", "java")
    machine.setup()
    first = machine.log()
    assert "nothing to do" in machine.setup().stdout
    assert machine.log() == first
    with (machine.folder / "checkout/requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    run = machine.setup()
    assert "making .venv" not in run.stdout
    assert machine.log() == first + first


def test_an_environment_whose_setup_did_not_end_is_made_anew(machine):
    machine.has("venv", "java", "no-network")
    assert machine.setup().returncode != 0
    (machine.folder / "no-network").unlink()
    run = machine.setup()
    assert "half-made" in run.stdout
    assert run.returncode == 0


def test_a_python_that_is_too_old_is_named(machine):
    old = machine.folder / "old"
    old.write_text('#!/bin/sh\ncase "$2" in *version_info\\[:2\\]*) echo 3.9 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    run = machine.setup(PYTHON=str(old))
    assert "is Python 3.9; Millpond needs >= 3.11" in run.stderr


def test_a_python_that_is_not_there_is_named(machine):
    assert "found no 'python9'" in machine.setup(PYTHON="python9").stderr
