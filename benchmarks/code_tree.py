"""Which code a figure was measured on, so that figures of other code are never put beside it."""

import subprocess
from pathlib import Path

CHANGED = "changed"
"""The tree of code that was changed since its commit: no other run's is the same."""


def tree_of(folder: Path) -> str:
    """Give git's hash of the code in a folder; code that was changed since has none that another run could match."""
    git = ("git", "-C", str(folder))
    if subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, check=True).stdout:
        return CHANGED
    return subprocess.run([*git, "rev-parse", "HEAD:./"], capture_output=True, check=True, text=True).stdout.strip()
