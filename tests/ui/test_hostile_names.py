"""Names that look like markup stay names, in every view, under a policy that would refuse what they ask for."""

import pytest

from millpond.errors import CorruptionError
from millpond.ui.server import PageSource, Posted, page_server
from millpond.ui.views import (
    Caches,
    CacheView,
    Features,
    HitRateCurve,
    HotGroup,
    LocationView,
    OperatorView,
    Overview,
    Queries,
    QueryView,
    StateRow,
    StoredRows,
    StoredStates,
    TargetRow,
    TargetView,
)

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&amp;javascript:alert(1)'
COUNTS = dict.fromkeys(
    (
        *("batches", "rows", "late_rows", "dead_letters", "restores", "spills", "loads", "cache_hits", "cache_misses"),
        *("shuffle_seconds", "run_seconds", "flush_seconds", "commit_seconds", "store_seconds"),
        *("state_rows", "state_bytes"),
    ),
    1,
)


def features(query):
    if "name" not in query:
        return Features([TargetRow(name=EVIL, kind="join", keys=[EVIL], features=1, problem=EVIL)], 1)
    return Features(
        target=TargetView(
            name=EVIL,
            kind="join",
            problem=EVIL,
            definition=[(EVIL, EVIL)],
            feature_types=[(EVIL, EVIL)],
            key_types={EVIL: "string"},
            context_types={},
            plans=[(EVIL, EVIL)],
            sizes=[(EVIL, 1, 2, 3)],
            freshness=[],
        )
    )


def state(query):
    if "location" in query:
        return StoredRows([EVIL], [[EVIL]])
    return StoredStates(
        [LocationView(name=EVIL, kind=EVIL, versions=EVIL, states=[StateRow(name=EVIL, declared=EVIL)])]
    )


def fails(_query):
    raise CorruptionError(EVIL)


VIEWS = {
    "overview": lambda _: Overview(EVIL, {EVIL: {EVIL: 1}}, [EVIL]),
    "caches": lambda _: Caches(
        [
            CacheView(
                name=EVIL, hits=1, misses=3, curve=HitRateCurve("bytes", [1, 2], {EVIL: [0.1, 0.4]}, 2), advice=[EVIL]
            )
        ],
        1,
    ),
    "features": features,
    "queries": lambda _: Queries(
        [
            QueryView(
                id="one",
                name=EVIL,
                is_active=True,
                error=EVIL,
                operators=[OperatorView(name=EVIL, **COUNTS, hot_groups=[HotGroup(1, 2, 0)])],
            )
        ]
    ),
    "state": state,
}
OPENAPI = b'{"openapi":"3.1.0","info":{"title":"T","version":"1","description":"D"},"paths":{}}'


@pytest.fixture(scope="module")
def url():
    source = PageSource(VIEWS, list, get=lambda _: Posted(200, OPENAPI))
    with page_server(source, "127.0.0.1", 0) as url:
        yield url


@pytest.mark.parametrize("view", ["overview", "caches", "queries", "features", "features/x", "state"])
def test_a_hostile_name_is_shown_as_it_is_and_nothing_of_it_runs(tab, url, view):
    shown = tab()
    page = shown.open(url, view)
    if view == "state":
        page.get_by_role("button", name="Show rows").click()
        shown.until(lambda: page.locator("tbody tr").count() == 3)
    assert "<script>window.hacked=1</script>" in page.inner_text("body")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main a[href^='javascript']").count() == 0
    assert shown.complaints == []
    assert shown.violations() == {}


def test_the_curve_and_the_advice_of_a_cache_are_shown_where_they_are_recorded(tab, url):
    shown = tab()
    page = shown.open(url, "caches")
    chart = page.locator("svg[aria-label^='Hit-rate curve']")
    assert chart.get_attribute("aria-label") == "Hit-rate curve: present size 2 B"
    assert chart.locator("line.mark").count() == 1
    assert "not recorded" not in shown.text()


def test_what_a_view_cannot_give_is_said_with_its_reason(tab):
    with page_server(PageSource(VIEWS | {"queries": fails}, list), "127.0.0.1", 0) as url:
        shown = tab()
        page = shown.page
        page.goto(f"{url}/#/queries")
        shown.until(lambda: EVIL in page.inner_text("#status"))
        assert page.evaluate("window.hacked") is None
