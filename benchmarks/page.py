"""How quick the web page is in a real browser: the first view, 50 updates a second, and 1,000 GroupBys.

A server of this machine serves the page, Chromium shows it, and all times are the browser's own performance entries
(navigation, paint, long tasks) and its clock, read inside the page.

| name | what it tells |
|---|---|
| `first_view_ms` | from the start of the navigation until the view has drawn its first answer, without a cache |
| `content_ms` | until the first content was painted |
| `updates_per_second` | how often the view was drawn while the page asks as fast as it can, and the numbers change |
| `longest_task_ms` | the longest task that held the page up meanwhile; 0 is none of 50 ms or more |
| `longest_frame_ms` | the longest time between two frames meanwhile |
| `answer_ms` | until the page shows what was typed into a filter |

`ten` is a server with ten GroupBys, `thousand` one with a thousand, each with two caches. Each figure is the median
over `VISITS` new tabs; of what is longest it is the longest. It needs Chromium, as the browser tests do.

    .venv/bin/python -m benchmarks.page
"""

import random
import shutil
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from benchmarks.report import grouped_bars, report
from benchmarks.serving_world import BATCH_END_MS, World, group_bys, key_name
from millpond.features import Aggregation, Field, GroupBy
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, http_app, running_server

HOUR_MS = 3_600_000
KEYS = 2_000
MANY = 1_000
VISITS = 7
WATCHED_MS = 5_000
CHANGES_PER_SECOND = 50
WANTED_FIRST_VIEW_MS = 1_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

WATCH = """
window.watched = {updates: [], tasks: [], frames: [], painted: null};
new MutationObserver(() => watched.updates.push(performance.now()))
  .observe(document, {subtree: true, attributes: true, attributeFilter: ["data-updates"]});
new PerformanceObserver((list) => watched.tasks.push(...list.getEntries().map((each) => each.duration)))
  .observe({type: "longtask", buffered: true});
new PerformanceObserver((list) => {
  for (const each of list.getEntriesByName("first-contentful-paint")) watched.painted = each.startTime;
}).observe({type: "paint", buffered: true});
const frame = (time) => { watched.frames.push(time); requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""
"""Runs in the page before its own scripts, and keeps what the browser measures."""

FIRST_VIEW = "performance.getEntriesByName('first-view')[0].startTime"
FORGET = "() => { watched.updates = []; watched.tasks = []; watched.frames = []; }"
FILTER = """
(text) => new Promise((found) => {
  const [input, rows] = [document.getElementById("filter"), () => document.querySelectorAll("tbody tr").length];
  const began = performance.now();
  const look = () => rows() === 1 ? found(performance.now() - began) : requestAnimationFrame(look);
  input.value = text;
  input.dispatchEvent(new Event("input", {bubbles: true}));
  look();
})
"""


@contextmanager
def served(definitions: list[GroupBy], store: MemoryStore) -> Iterator[str]:
    """A server whose numbers change `CHANGES_PER_SECOND` times a second."""
    with (
        Fetcher(store, definitions, now=lambda: BATCH_END_MS + HOUR_MS) as fetcher,
        running_server(http_app(fetcher)) as url,
    ):
        stop, drawn = threading.Event(), random.Random(3)

        def ask() -> None:
            while not stop.wait(1 / CHANGES_PER_SECOND):
                definition = drawn.choice(definitions)
                kind = definition.keys[0].name
                fetcher.fetch(definition.name, {kind: key_name(kind, drawn.randrange(KEYS))}, at=BATCH_END_MS + HOUR_MS)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        try:
            yield url
        finally:
            stop.set()
            asking.join()


@contextmanager
def ten() -> Iterator[str]:
    """A server with data."""
    definitions = group_bys(KEYS // 4)
    world = World(MemoryStore(), definitions, KEYS)
    world.land()
    world.stream_until(BATCH_END_MS + HOUR_MS)
    with served(definitions, world.store) as url:
        yield url


@contextmanager
def thousand() -> Iterator[str]:
    """A server with a thousand GroupBys, to which nothing was uploaded."""
    definitions = [
        GroupBy(
            f"group_{number:04}",
            keys=(Field("user", "string"),),
            inputs=(),
            aggregations=(Aggregation("count", windows=("1d",)),),
            fetcher_cache_size=100,
            fetcher_tile_cache_size=100,
        )
        for number in range(MANY)
    ]
    with served(definitions, MemoryStore()) as url:
        yield url


class Visitor:
    """Opens tabs without a cache, and reads what the browser measured."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    @contextmanager
    def tab(self, url: str, view: str, interval: int = 1_000) -> Iterator[Any]:
        """A view in a new tab, once it has drawn its first answer."""
        context = self._browser.new_context(viewport={"width": 1200, "height": 900})
        try:
            page = context.new_page()
            page.add_init_script(WATCH)
            page.goto(f"{url}/?interval={interval}#/{view}")
            while not page.evaluate("watched.updates.length"):
                page.wait_for_timeout(10)
            yield page
        finally:
            context.close()

    def first_views(self, url: str, view: str) -> dict[str, float]:
        """How long a view takes to be there."""
        drawn, painted = [], []
        for _ in range(VISITS):
            with self.tab(url, view) as page:
                drawn.append(page.evaluate(FIRST_VIEW))
                painted.append(page.evaluate("watched.painted"))
        return {"first_view_ms": statistics.median(drawn), "content_ms": statistics.median(painted)}

    def many_updates(self, url: str, view: str) -> dict[str, float]:
        """What becomes of a page that asks as fast as it can."""
        with self.tab(url, view, interval=1) as page:
            page.evaluate(FORGET)
            page.wait_for_timeout(WATCHED_MS)
            seen = page.evaluate("watched")
        frames = seen["frames"]
        return {
            "updates_per_second": 1_000 * len(seen["updates"]) / WATCHED_MS,
            "longest_task_ms": max(seen["tasks"], default=0.0),
            "longest_frame_ms": max(later - one for one, later in pairwise(frames)),
        }

    def filtered(self, url: str, view: str) -> float:
        """How long it takes to find one of many."""
        found = []
        with self.tab(url, view) as page:
            for number in range(VISITS):
                found.append(page.evaluate(FILTER, f"group_{number * 137:04}"))
                page.evaluate(FILTER.replace("=== 1", "> 1"), "")
        return statistics.median(found)


def measured() -> dict[str, dict[str, float]]:
    """All figures, by what was looked at."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise SystemExit("there is no chromium; as root: apt-get install chromium")
    with sync_playwright() as playwright, ten() as few, thousand() as many:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        visitor = Visitor(browser)
        found = {
            "ten, overview": visitor.first_views(few, "overview") | visitor.many_updates(few, "overview"),
            "ten, caches": visitor.first_views(few, "caches") | visitor.many_updates(few, "caches"),
            "thousand, overview": visitor.first_views(many, "overview") | visitor.many_updates(many, "overview"),
            "thousand, caches": visitor.first_views(many, "caches") | visitor.many_updates(many, "caches"),
            "thousand, features": visitor.first_views(many, "features")
            | visitor.many_updates(many, "features")
            | {"answer_ms": visitor.filtered(many, "features")},
        }
        browser.close()
    return found


def main() -> None:
    """Measure, print, and write the results."""
    found = measured()
    columns = ("first_view_ms", "content_ms", "updates_per_second", "longest_task_ms", "longest_frame_ms", "answer_ms")
    report(
        "page",
        title="The web page in Chromium: ms until it is there, and how it bears updates",
        columns=("GroupBys, view", *(name.replace("_", " ") for name in columns)),
        rows=[(name, *(each.get(column, "") for column in columns)) for name, each in found.items()],
        result={"page": found, "wanted": {"first_view_ms": WANTED_FIRST_VIEW_MS}},
        draw=lambda axes: grouped_bars(
            axes,
            [name.replace(", ", "\n") for name in found],
            {name: [each[name] for each in found.values()] for name in ("first_view_ms", "longest_frame_ms")},
            ylabel="ms",
        ),
    )


if __name__ == "__main__":
    main()
