"""The wheel of this platform has the hot modules compiled, and passes the tests of keyed state as the sources do."""

import os
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests.dist.conftest import COMPILED, ROOT, compiled_wheel, plain_wheel

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900, func_only=True)]

HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
MODULES = [path.removeprefix("/src/").removesuffix(".py").replace("/", ".") for path in HOOK["mypyc"]["include"]]


@pytest.mark.parametrize(("wheel", "compiled", "suffix"), [(COMPILED, "True", "so"), ("", "False", "py")])
def test_a_user_gets_the_modules_of_the_wheel_and_doctor_knows_them(environment, tmp_path, wheel, compiled, suffix):
    told = environment(wheel).python(
        f"""
        from importlib import import_module
        from millpond.doctor import is_compiled
        print(is_compiled(), *(import_module(name).__file__.rpartition(".")[2] for name in {MODULES}))
        """.replace("\n        ", "\n"),
        tmp_path,
    )
    assert told.stdout.split() == [compiled, *[suffix] * len(MODULES)], told.stderr


def test_the_wheel_runs_on_linux_as_old_as_that_of_its_name():
    # Else no package index takes it.
    assert sys.platform != "linux" or "manylinux" in compiled_wheel().name


def test_the_wheel_for_all_platforms_has_nothing_compiled():
    with zipfile.ZipFile(plain_wheel()) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]


def test_keyed_state_keeps_its_promises_compiled(tmp_path):
    with zipfile.ZipFile(compiled_wheel()) as wheel:
        wheel.extractall(tmp_path)
    settings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    where = [sys.executable, "-c", f"import {MODULES[0]} as module; print(module.__file__)"]
    assert subprocess.check_output(where, env=settings, text=True).startswith(str(tmp_path))
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*tests, "tests/state", "tests/spark/environment/test_tracebacks.py"],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
