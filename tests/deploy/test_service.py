"""Image, chart, compose file and unit run `millpond serve` as it is: its options, paths, times and memory."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.redis_servers import redis_server
from millpond.commands.definitions import load_definitions
from millpond.commands.serve import serve
from millpond.features import DAY_MS, ServingInfo, compile_group_by, stream_dataset
from millpond.kv import LmdbStore, MemoryStore, Put, open_store
from millpond.serving import FetchClient, Fetcher, Limits, http_app
from millpond.serving.http.running.ending import GRACE_SECONDS
from millpond.serving.http.running.processes import _KILL_AFTER_MS
from tests.deploy.conftest import (
    DEPLOY,
    compose,
    container,
    dockerfile,
    image_command,
    rendered,
    unit,
    unit_command,
)

ENDING_SECONDS = GRACE_SECONDS + _KILL_AFTER_MS / 1000
"""What a parent and its workers may take beside the drain time."""


def chart_command():
    return container(rendered())["args"]


COMMANDS = {
    "image": image_command,
    "chart": chart_command,
    "compose": lambda: compose()["services"]["millpond"]["command"],
    "unit": unit_command,
}


@pytest.fixture
def options(monkeypatch):
    """The parsed options of a command, by the click command itself."""
    monkeypatch.setenv("MILLPOND_STORE", "redis://rows:6379")

    def parsed(command):
        name, *arguments = command
        assert name == "serve"
        return serve.make_context("serve", list(arguments)).params

    return parsed


@pytest.mark.parametrize("place", sorted(COMMANDS))
def test_the_command_takes_every_option_that_it_is_given(place, options):
    given = options(COMMANDS[place]())
    assert given["store_url"] == "redis://rows:6379"
    assert given["port"] == 8765
    assert given["host"] == ("127.0.0.1" if place == "unit" else "0.0.0.0")  # noqa: S104 - a container's own network


def test_the_chart_gives_the_options_that_its_values_ask_for(options):
    values = {"processes": 3, "cacheBudgetMb": 500, "drainMs": 2500, "apiKeysSecret": "callers", "tlsSecret": "tls"}
    given = options(container(rendered(values))["args"])
    assert (given["processes"], given["cache_budget"], given["drain_ms"]) == (3, "500MB", 2500)
    mounted = {each["mountPath"] for each in container(rendered(values))["volumeMounts"]}
    paths = [given["api_keys"], given["tls_certificate"], given["tls_key"], *map(Path, given["definitions"])]
    assert {str(path.parent) for path in paths} <= mounted


def test_probes_and_health_checks_ask_for_paths_that_are_served_without_a_key():
    app = http_app(Fetcher(MemoryStore(), []))
    open_paths = {path for path, route in app._routes.items() if not route.needs_key}
    probes = [container(rendered())[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert probes == ["/health", "/health", "/ready"]
    checks = [dict(dockerfile())["HEALTHCHECK"], json.dumps(compose()["services"]["millpond"]["healthcheck"]["test"])]
    asked = [re.search(r"http://127\.0\.0\.1:8765(/\w+)", check)[1] for check in checks]
    assert asked == ["/health", "/health"]
    assert {*probes, *asked} <= open_paths
    scrape = rendered()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert scrape["prometheus.io/path"] in app._routes


def test_everybody_waits_longer_than_the_service_takes_to_end():
    drain_seconds = Limits().drain_ms / 1000
    assert int(re.fullmatch(r"(\d+)s", compose()["services"]["millpond"]["stop_grace_period"])[1]) > (
        drain_seconds + ENDING_SECONDS
    )
    assert int(unit()["TimeoutStopSec"]) > drain_seconds + ENDING_SECONDS
    for values in ({}, {"drainMs": 12_345, "preStopSeconds": 0}, {"preStopSeconds": 30}):
        manifests = rendered(values)
        before_seconds = int(container(manifests)["lifecycle"]["preStop"]["exec"]["command"][1])
        (drain,) = [each for each in container(manifests)["args"] if each.startswith("--drain-ms=")]
        wait_seconds = manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert wait_seconds > before_seconds + int(drain.partition("=")[2]) / 1000 + ENDING_SECONDS


def test_nothing_runs_as_root_or_writes_to_its_image():
    stages = [instruction for instruction, _ in dockerfile()].count("FROM")
    user = int(dict(dockerfile())["USER"].partition(":")[0])
    assert (stages, user > 0) == (2, True)
    service = compose()["services"]["millpond"]
    assert (service["user"].partition(":")[0], service["read_only"], service["cap_drop"]) == (str(user), True, ["ALL"])
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (user, True)
    assert container(rendered())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_asks_for_a_core_a_process_and_for_the_memory_of_their_caches():
    resources = container(rendered({"processes": 4, "cacheBudgetMb": 500, "memoryPerProcessMb": 300}))["resources"]
    assert resources == {"requests": {"cpu": 4, "memory": "3200Mi"}, "limits": {"memory": "3200Mi"}}


def test_changed_definitions_make_new_pods():
    def mark(text):
        template = rendered({"definitions": {"flights.py": text}})["Deployment"]["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/definitions"]

    assert mark("route = 1\n") == mark("route = 1\n") != mark("route = 2\n")


def _status(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status  # noqa: S310 - of the service above
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def _serving(command, store_url, folder):
    """The process and URL of a service that a file of `deploy/` starts, but on a free port of the loopback."""
    at_home = {"0.0.0.0": "127.0.0.1", "8765": "0", "--host=0.0.0.0": "--host=127.0.0.1", "--port=8765": "--port=0"}  # noqa: S104
    definitions = str(DEPLOY / "features/definitions.py")
    arguments = [definitions if each.startswith("/features/") else at_home.get(each, each) for each in command]
    environ = {**os.environ, "MILLPOND_STORE": store_url, "TMPDIR": str(folder), "HOME": "/"}
    program = str(Path(sys.executable).parent / "millpond")
    process = subprocess.Popen([program, *arguments], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        assert said.startswith("millpond: serving on http://"), said
        yield process, said.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert code == 0


def test_the_pods_command_serves_within_its_memory_and_ends_when_told(tmp_path):
    pod = container(rendered({"processes": 2}))
    LmdbStore(tmp_path / "rows").close()
    with _serving(pod["args"], f"lmdb://{tmp_path}/rows", tmp_path) as (process, url):
        assert (_status(f"{url}/health"), _status(f"{url}/ready"), _status(f"{url}/metrics")) == (200, 503, 200)
        everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(everyone) == 3
        used = sum(each.memory_full_info().uss for each in everyone)
        assert used <= int(re.fullmatch(r"(\d+)Mi", pod["resources"]["limits"]["memory"])[1]) << 20


def test_the_service_of_the_compose_file_answers_from_the_redis_beside_it(tmp_path):
    services = compose()["services"]
    program, *options = services["redis"]["command"]
    assert program == "redis-server"
    with ExitStack() as opened:
        server = opened.enter_context(redis_server(*options))
        (route,) = load_definitions([str(DEPLOY / "features/definitions.py")]).group_bys
        with closing(open_store(server.url)) as store:
            _land(route, store)
        _, url = opened.enter_context(_serving(services["millpond"]["command"], server.url, tmp_path))
        assert _status(f"{url}/ready") == 200
        with FetchClient(url) as client:
            found = client.fetch("route", {"origin": "EWR", "carrier": "UA"}, at=DAY_MS)
        assert found.features["count_7d"] == 1


def _land(route, store):
    """What an upload leaves: a batch with one departure, and the record that points at it."""
    plan = compile_group_by(route)
    stream = stream_dataset("route", plan.generation)
    info = ServingInfo(
        "route", plan.definition_hash, DAY_MS, 7, "route.batch", stream, plan.generation, plan.batch_form, plan.layers
    )
    key = plan.encode_key(["EWR", "UA"])
    batch = plan.batch_ir([(DAY_MS - 1, (20.0,))], DAY_MS)
    store.put_many(info.batch_dataset, [Put(key, plan.encode_batch(key, batch), DAY_MS)])
    store.put_many("serving_info", [Put(b"route", info.encode())])
