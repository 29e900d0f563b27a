"""Blank environments into which a built wheel is installed by uv."""

import functools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
COMPILED = "compiled"
"""As an extra: the wheel of this platform. A package index prefers it to the plain one."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the wheel with some extras, and nothing of this checkout."""

    folder: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        program, *arguments = command
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
        }
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=cwd,
            env=kept,
            capture_output=True,
            text=True,
            check=False,
        )

    def python(self, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run code as a user's script."""
        script = cwd / "script.py"
        script.write_text(code)
        return self.run("python", "-I", str(script), cwd=cwd)


@pytest.fixture(scope="session")
def environment() -> Iterator[Callable[..., Environment]]:
    """Gives the environment with an extra, or that of the plain package, and with other packages."""
    # Beside uv's cache and not where the other temporary files of tests are, so that packages are linked, not copied.
    folder = DIST / f"environments-{os.getpid()}"

    def install(into: Path, extras: str, *options: str) -> Environment:
        _uv("venv", "--python", sys.executable, str(into))
        names = [extra for extra in extras.split(",") if extra not in ("", COMPILED)]
        wheel = compiled_wheel() if COMPILED in extras.split(",") else plain_wheel()
        what = f"{wheel}[{','.join(names)}]" if names else str(wheel)
        _uv("pip", "install", "--python", str(into), "--constraints", str(ROOT / "requirements.lock"), what, *options)
        return Environment(into)

    # All at once from the network, so that PySpark, which comes without a wheel, is fetched and built once.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    install(folder / "everything", ",".join(extras))

    @functools.cache
    def made(extra: str, *others: str) -> Environment:
        return install(folder / "-".join([extra or "plain", *others]), extra, "--offline", *others)

    yield made
    shutil.rmtree(folder, ignore_errors=True)


def plain_wheel() -> Path:
    """The wheel for all platforms."""
    return _only_wheel("*-none-any.whl")


def compiled_wheel() -> Path:
    """The wheel for this platform and this Python."""
    return _only_wheel(f"*-cp{sys.version_info.major}{sys.version_info.minor}-cp*.whl")


def _only_wheel(pattern: str) -> Path:
    wheels = list(DIST.glob(pattern))
    assert len(wheels) == 1, f"expected one wheel {pattern} in {DIST}, found {wheels}: `make dist` builds it"
    return wheels[0]


def _uv(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "uv"), "--quiet", *arguments], cwd=DIST, check=True)
