"""How the tests of the LMDB store read it, and run a program beside it."""

import subprocess
import sys

import lmdb

from millpond.kv import Get

MIB = 1 << 20


def times(store, dataset="d", key=b"k"):
    return [row.time_ms for row in store.get_many([Get(dataset, key)])[0]]


def entries(folder):
    """Everything that the store's file holds, in order."""
    with lmdb.open(str(folder)) as environment, environment.begin() as transaction:
        return list(transaction.cursor())


def run_child(code: str, *args: str) -> str:
    child = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout
