"""Which code a figure was measured on, so that figures of other code are never put beside it."""

import filecmp
import subprocess
from pathlib import Path

import millpond

SOURCES = Path(__file__).parents[1] / "src" / "millpond"
CHANGED = "changed"
"""The tree of code that was changed since its commit: no other run's is the same."""


def tree_of(folder: Path) -> str:
    """Give git's hash of the code in a folder; code that was changed since has none that another run could match."""
    git = ("git", "-C", str(folder))
    if subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, check=True).stdout:
        return CHANGED
    return subprocess.run([*git, "rev-parse", "HEAD:./"], capture_output=True, check=True, text=True).stdout.strip()


def tree_of_package() -> str:
    """Give the hash of the package that runs, which may be the compiled one; that must be of the same sources."""
    package, tree = Path(millpond.__file__).parent, tree_of(SOURCES)
    if package == SOURCES:
        return tree
    check_same_sources(package)
    return tree if tree == CHANGED else f"{tree}, compiled"


def check_same_sources(package: Path) -> None:
    """Raise AssertionError if a compiled package was made from other modules than those that are here."""
    modules = [str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py")]
    _, differ, missing = filecmp.cmpfiles(SOURCES, package, modules, shallow=False)
    assert not differ, f"changed since `make compiled`: {differ}"
    assert not missing, f"not in {package}: {missing[:3]}; run `make compiled`"
