"""The YAML of the page on Kubernetes is what the chart and Kubernetes take."""

import re

import pytest
import yaml

from tests.deploy.conftest import ROOT, container, rendered

PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text()
VALUES, POD = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_chart_takes_the_values_of_the_page():
    manifests = rendered(VALUES)
    assert manifests["Deployment"]["spec"]["replicas"] == VALUES["replicas"]
    assert f"--cache-budget={VALUES['cacheBudgetMb']}MB" in container(manifests)["args"]
    assert container(manifests)["image"].startswith(VALUES["image"]["repository"])


def test_the_page_names_values_that_the_chart_has():
    schema = (ROOT / "deploy/helm/millpond/values.schema.json").read_text()
    named = re.findall(r"`(\w+(?:Seconds|Ms|Mb|Secret))`", PAGE)
    assert len(named) >= 6
    assert [name for name in named if f'"{name}"' not in schema] == []


def test_kubernetes_takes_the_executors_template_of_the_page():
    kubernetes = pytest.importorskip("kubernetes_validate")
    kubernetes.validate(POD, "1.31", strict=True)
    assert POD["spec"]["containers"][0]["name"] == "spark-kubernetes-executor"
