"""What the Dockerfile installs serves: its own commands, run without a container. Run by `make dist`."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT, dockerfile, image_command

pytestmark = [pytest.mark.dist, pytest.mark.timeout(200)]


def test_the_first_stage_makes_an_environment_that_has_the_service(tmp_path):
    for name in ("pyproject.toml", "requirements.lock", "requirements-build.lock", "README.md", "LICENSE", "src"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    runs = " && ".join(text for instruction, text in dockerfile() if instruction == "RUN")
    bin_folder = Path(sys.executable).parent
    commands = [shlex.split(each.replace("/opt/millpond", "made")) for each in runs.split("&&")]
    assert [command[0] for command in commands] == ["uv", "uv"]
    for command in commands:
        python = [sys.executable if each == "python3" else each for each in command]
        subprocess.run([bin_folder / "uv", "--quiet", *python[1:]], cwd=tmp_path, check=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    command = [tmp_path / "made/bin/millpond", *image_command(), "--help"]
    helped = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert helped.returncode == 0, helped.stderr
    assert "MILLPOND_STORE" in helped.stdout
