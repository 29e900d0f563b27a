"""Each public package has a file of `tests/typing`, which `make lint` has checked: what users get is typed for them."""

import ast
import tomllib
from pathlib import Path

import pytest

from tests.test_public_api import PUBLIC

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "typing"


def test_the_type_checker_is_given_the_folder():
    assert "tests/typing" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]


@pytest.mark.parametrize("package", sorted(name for name, names in PUBLIC.items() if names and name != "millpond"))
def test_a_package_has_a_file_that_states_types_of_what_it_publishes(package):
    tree = ast.parse((FOLDER / f"{package.rpartition('.')[2]}.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    }
    assert imported <= set(PUBLIC[package].split()), "users import from the package alone"
    assert len(imported) >= 4
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert "assert_type" in called
