"""What the files of `deploy/` say: read and rendered, so that tests can look at it."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/millpond"
VALUES = {"definitions": {"flights.py": "route = 1\n"}, "store": {"url": "redis://rows:6379"}}
"""The least that the chart must be given."""


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, without comments, each on one line."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def image_command() -> list[str]:
    """What the image runs unless told otherwise, without the program."""
    return json.loads(dict(dockerfile())["CMD"])


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def unit() -> dict[str, str]:
    """The settings of the systemd unit; of those that stand twice the last."""
    return dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "millpond-serve.service").read_text(), re.MULTILINE))


def unit_command() -> list[str]:
    """What the unit runs, without the program."""
    return shlex.split(unit()["ExecStart"])[1:]


def rendered(values: dict | None = None) -> dict[str, dict]:
    """The manifests of the chart by kind, as Helm makes them."""
    helm = pytest.importorskip("helm_python.chart", reason="helm-python-sdk has a wheel for Linux on x86_64 only")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render({**VALUES, **(values or {})}, name="demo")
    manifests = [yaml.safe_load(text) for name, text in texts.items() if not name.endswith(".txt")]
    return {manifest["kind"]: manifest for manifest in manifests if manifest}


def container(manifests: dict[str, dict]) -> dict:
    """The one container of the chart's pods."""
    (found,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found
