"""The vocabulary of metrics is the only one: the code, the dashboard and the alerts have no other name."""

import ast
import json
import re
from pathlib import Path

import msgspec
import pytest

import millpond.metrics
from millpond.cache import CacheStats
from millpond.metrics import METRICS
from millpond.metrics.vocabulary import metric_named
from millpond.serving import FetcherStats, Freshness
from millpond.serving.http.fetcher_families import CACHES, FRESHNESS, SUMS, fetcher_families

FOLDER = Path(millpond.metrics.__file__).parent
SOURCES = [path for path in FOLDER.parent.rglob("*.py") if path.parent != FOLDER]
TELLING = {"count", "gauge", "family", "level"}


def told():
    """A pattern for each name of a metric that the code tells a recorder or makes a family of, with its file."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", None))
                given = node.args[0]
                if isinstance(given, ast.Name):
                    given = constants.get(given.id, given)
                pattern = _pattern(given)
                if called in TELLING and pattern is not None:
                    yield pattern, path


def _pattern(given):
    if isinstance(given, ast.Constant) and isinstance(given.value, str) and _looks_like_one(given.value):
        return re.escape(given.value)
    if isinstance(given, ast.JoinedStr):
        parts = [re.escape(part.value) if isinstance(part, ast.Constant) else "[a-z_]+" for part in given.values]
        return "".join(parts) if parts[0].startswith("millpond_") else None
    return None


def _looks_like_one(text):
    return text.startswith("millpond_") or text == "stateCacheHitRatio"


def used(text):
    """The names of metrics in a dashboard or in rules."""
    return set(re.findall(r"\bmillpond_[a-z_]+", text))


def test_the_code_tells_no_metric_that_is_not_in_the_vocabulary():
    known = {*METRICS, "stateCacheHitRatio"}
    patterns = list(told())
    assert len(patterns) > 25
    assert [(name, path) for name, path in patterns if not any(re.fullmatch(name, one) for one in known)] == []


def test_every_metric_of_the_vocabulary_is_told_somewhere():
    patterns = [name for name, _ in told()]
    served = {metric for table in (SUMS, CACHES, FRESHNESS) for _, metric, _ in table}
    served |= {"millpond_fetcher_duration_seconds", metric_named("stateCacheHitRatio").name}
    assert [one for one in METRICS if one not in served and not any(re.fullmatch(name, one) for name in patterns)] == []


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_a_metric_follows_the_conventions_of_prometheus(metric):
    assert re.fullmatch(r"millpond_[a-z]+(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|millis|milliseconds|kb|mb|minutes|count|sum|bucket)(_|$)", metric.name)
    assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)
    assert not {"key", "keys", "error", "message", "le", "process"} & set(metric.labels)
    assert metric.help.endswith(".")
    if metric.kind == "histogram":
        assert metric.unit == "seconds"


@pytest.mark.parametrize(
    ("table", "fields", "made_otherwise"),
    [
        (SUMS, FetcherStats.__struct_fields__, {"caches", "freshness", "latencies"}),
        (CACHES, CacheStats.__slots__, set()),
        (FRESHNESS, Freshness.__struct_fields__, set()),
    ],
    ids=["fetcher", "cache", "freshness"],
)
def test_every_statistic_of_a_fetcher_has_its_metric_and_its_labels(table, fields, made_otherwise):
    assert {field for field, _, _ in table} == set(fields) - made_otherwise
    own = {"cache"} if table is CACHES else {"group_by"} if table is FRESHNESS else set()
    for _, name, labels in table:
        assert own | set(labels) == set(METRICS[name].labels)


def test_the_numbers_of_a_fetcher_arrive_under_their_names():
    cache = CacheStats(hits=7, misses=2, loads=5, load_failures=1, evictions=3, expirations=4, entries=6, bytes=None)
    stats = FetcherStats(
        requests=9,
        late_batches=1,
        caches={"route.batch": cache},
        freshness={"route": Freshness(1_500, None, 250, True)},
    )
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in fetcher_families(stats)
        for sample in family.samples
        if sample.value
    }
    found.pop(("millpond_process_memory_bytes",), None)
    assert found == {
        ("millpond_fetcher_requests_total",): 9,
        ("millpond_fetcher_late_batches",): 1,
        ("millpond_cache_requests_total", "route.batch", "hit"): 7,
        ("millpond_cache_requests_total", "route.batch", "miss"): 2,
        ("millpond_cache_loads_total", "route.batch", "ok"): 4,
        ("millpond_cache_loads_total", "route.batch", "failure"): 1,
        ("millpond_cache_evictions_total", "route.batch", "size"): 3,
        ("millpond_cache_evictions_total", "route.batch", "age"): 4,
        ("millpond_cache_entries", "route.batch"): 6,
        ("millpond_fetcher_batch_end_age_seconds", "route"): 1.5,
        ("millpond_fetcher_closing_age_seconds", "route"): 0.25,
        ("millpond_fetcher_batch_late", "route"): 1,
    }
    assert msgspec.to_builtins(stats)["requests"] == 9


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_every_name_in_the_dashboard_and_in_the_alerts_is_one_that_an_exporter_gives(file):
    given = set()
    for metric in METRICS.values():
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        given |= {metric.name + suffix for suffix in suffixes}
    names = used((FOLDER / file).read_text())
    assert len(names) > 5
    assert names - given == set()


def test_every_metric_has_a_panel():
    names = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in used((FOLDER / "grafana-dashboard.json").read_text())
    }
    assert set(METRICS) - {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} == set()


def labels_used(text):
    """Each metric with the labels that an expression selects or sums it by."""
    for by, inner in re.findall(r"by \(([a-z_, ]+)\) \((?:rate|increase)?\(?([^)\]]+)", text):
        for name in used(inner):
            yield name, {label.strip() for label in by.split(",")} - {"le", "process"}
    for name, selected in re.findall(r"(millpond_[a-z_]+)\{([^}]*)\}", text):
        yield name, set(re.findall(r"([a-z_]+)(?:=|!)", selected))


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_the_dashboard_and_the_alerts_select_by_labels_that_a_metric_has(file):
    text = (FOLDER / file).read_text().replace('\\"', '"')
    found = list(labels_used(text))
    assert len(found) > 4
    for name, labels in found:
        metric = METRICS[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert labels <= set(metric.labels), name


def test_the_dashboard_has_a_query_in_every_panel_and_no_panel_over_another():
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert all(target["expr"] for panel in shown for target in panel["targets"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_has_an_expression_a_severity_and_a_summary():
    rules = re.split(r"^      - alert: ", (FOLDER / "prometheus-alerts.yml").read_text(), flags=re.MULTILINE)[1:]
    assert len(rules) >= 8
    for rule in rules:
        assert re.match(r"Millpond\w+\n        expr: \S.*\n", rule)
        assert re.search(r"^        labels: \{severity: (warning|critical)\}$", rule, re.MULTILINE)
        assert re.search(r"^          summary: .+\.$", rule, re.MULTILINE)
