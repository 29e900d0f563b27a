"""Every view in a real browser: with data and without, by keyboard, on a phone, and with a server that goes away."""

import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from millpond.demo.definitions import ROUTE
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, Target, http_app, running_server
from tests.serving.http.answering import Answering
from tests.ui.demo_world import DemoWorld

VIEWS = {
    "overview": "Overview",
    "caches": "Caches",
    "queries": "Keyed queries",
    "features": "Features",
    "features/flight": "Features",
    "state": "Checkpoints and savepoints",
    "api": "API",
}
KEY = "a-key-0123456789-abc"


@pytest.fixture(scope="module")
def world():
    world = DemoWorld(cache_entries=300)
    world.ask(1_000)
    return world


@pytest.fixture(scope="module")
def url(world):
    with running_server(http_app(world.fetcher)) as url:
        yield url


@pytest.mark.parametrize(("theme", "width"), [("light", 1200), ("dark", 360)])
def test_every_view_is_accessible_fits_and_asks_its_own_server_alone(tab, url, theme, width):
    shown = tab(width=width, theme=theme)
    for view, title in VIEWS.items():
        page = shown.open(url, view)
        assert page.inner_text("h1") == title
        assert page.title() == f"{title} · Millpond"
        assert shown.violations() == {}, view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} scrolls sideways"
    assert {each.split("/")[2] for each in shown.requested} == {url.split("/")[2]}
    assert shown.complaints == []


def test_a_narrow_table_scrolls_and_does_not_break_short_words(tab, url):
    page = tab(width=360).open(url, "features")
    lines = page.evaluate(
        """() => [...document.querySelectorAll("td")].filter((cell) => cell.innerText === "GroupBy").map((cell) => {
             const range = document.createRange();
             range.selectNodeContents(cell);
             return new Set([...range.getClientRects()].map((box) => box.top)).size;
           })"""
    )
    assert lines
    assert set(lines) == {1}


def test_the_overview_says_that_no_cache_is_enabled(tab, world):
    fetcher = Fetcher(world.store, [ROUTE], enable_fetcher_caching=False, now=lambda: world.now_ms)
    with fetcher, running_server(http_app(fetcher)) as url:
        told = tab().open(url).inner_text("main")
    assert "no cache is enabled" in told


def test_the_overview_has_live_numbers_at_each_hop(tab, world, url):
    shown = tab()
    page = shown.open(url)
    world.ask(50)
    shown.drawn()
    told = [text.split("\n", 1) for text in page.locator(".hop").all_inner_texts()]
    times = shown.times()
    print("first view, ms:", times)
    assert 0 < times["first-contentful-paint"] <= times["first-view"]
    hops = {title: text.strip() for title, text in told}
    assert set(hops) == {"Lookup join", "Keyed state", "Tiles", "Batch upload", "KV store", "Fetcher"}
    assert "keys/s" in hops["Fetcher"]
    assert "% hits" in hops["Fetcher"]
    assert hops["Batch upload"].startswith("12 h old")
    assert "Not here" in hops["Keyed state"]


def test_a_cache_that_is_too_small_is_found_with_the_page_alone(tab, world, url):
    shown = tab()
    page = shown.open(url)
    world.ask(200)
    shown.until(lambda: "Caches shows which are too small" in page.inner_text(".attention"))
    page.click("nav >> text=Caches")
    shown.until(lambda: page.locator("tbody tr").count() == 5)
    verdicts = dict(row.split("\t")[:2] for row in page.locator("tbody tr").all_inner_texts())
    assert {name for name, verdict in verdicts.items() if verdict == "too small"} == {
        "aircraft.batch",
        "aircraft.tiles",
    }
    page.click("text=aircraft.batch")
    told = page.inner_text("section[aria-label='The chosen cache']")
    assert "Give it a larger size" in told
    assert "Hit-rate curve: not recorded." in told
    larger = world.new_fetcher(2_000)
    world.fetcher, before = larger, world.fetcher
    try:
        world.ask(1_000)
    finally:
        world.fetcher = before
    with running_server(http_app(larger)) as mended:
        page = shown.open(mended, "caches")
        assert "too small" not in page.inner_text("main")


def test_with_the_keyboard_alone_a_key_is_asked_for_and_explained(tab, url):
    shown = tab()
    page = shown.open(url, "overview")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reach(page, "Features")
    page.keyboard.press("Enter")
    shown.until(lambda: page.locator("button.open", has_text="route").count() == 1)
    reach(page, "route")
    page.keyboard.press("Enter")
    shown.until(lambda: page.locator("#keys-origin").count() == 1)
    shown.drawn()
    for field, text in (("keys-origin", "EWR"), ("keys-carrier", "UA")):
        for _ in range(40):
            if page.evaluate("document.activeElement.id") == field:
                break
            page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    shown.until(lambda: "As of 2014-01-01 12:00:00 UTC" in shown.text())
    told = shown.text()
    assert "Row of the batch that ended 2014-01-01 00:00:00 UTC" in told
    assert "Derived from dep_delay_average_1d, dep_delay_average_7d" in told


def reach(page, text):
    for _ in range(60):
        if page.evaluate("document.activeElement.textContent").strip() == text:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never comes to {text!r}")


def test_an_error_of_a_request_is_said_beside_the_form(tab, url):
    shown = tab()
    page = shown.open(url, "features/route")
    page.fill("#keys-origin", "")
    page.get_by_role("button", name="Ask", exact=True).click()
    shown.until(lambda: "As of" in shown.text())
    page = shown.open(url, "features/nothing")
    assert "There is no GroupBy or Join nothing." in shown.text()


def test_a_view_without_data_says_what_to_do(tab):
    with running_server(http_app(Fetcher(MemoryStore(), []))) as url:
        shown = tab()
        told = {view: shown.open(url, view) and shown.text() for view in ("caches", "queries", "features", "state")}
    assert "--fetcher-caching" in told["caches"]
    assert "millpond.spark.ui(spark)" in told["queries"]
    assert "millpond serve definitions.py" in told["features"]
    assert "millpond ui --state LOCATION" in told["state"]


def test_a_server_that_is_killed_is_said_and_found_again(tab, world):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shown = tab()
    with running_server(http_app(world.fetcher), port=port) as url:
        page = shown.open(url, "caches")
        before = page.inner_text("tbody")
    status = page.locator("#status")
    shown.until(lambda: "does not answer" in status.inner_text())
    assert "Trying again" in status.inner_text()
    assert page.inner_text("tbody") == before, "what was known is still there"
    with running_server(http_app(world.fetcher), port=port):
        shown.until(lambda: status.inner_text().startswith("Live"))
        shown.drawn()


def test_with_api_keys_the_page_asks_for_one_and_shows_nothing_before(tab, world):
    with running_server(http_app(world.fetcher, api_keys=[KEY])) as url:
        shown = tab()
        page = shown.page
        page.goto(f"{url}/?interval=50#/features")
        page.wait_for_selector("#api-key")
        assert "route" not in shown.text()
        assert shown.violations() == {}
        page.fill("#api-key", KEY[::-1])
        page.keyboard.press("Enter")
        shown.until(lambda: page.locator("#api-key").count() == 1 and page.locator("#api-key").input_value() == "")
        page.fill("#api-key", KEY)
        page.keyboard.press("Enter")
        shown.until(lambda: "route" in shown.text())


@contextmanager
def stripping_proxy(url, prefix):
    """A proxy that answers below a prefix alone, and takes it away."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.forward(None)

        def do_POST(self):
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))

        def forward(self, body):
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            headers = {"Content-Type": "application/json"} if body else {}
            request = Request(url + self.path.removeprefix(prefix), body, headers)  # noqa: S310 - our own server
            try:
                with urlopen(request, timeout=20) as response:  # noqa: S310
                    status, kind, content = response.status, response.headers["Content-Type"], response.read()
            except HTTPError as error:
                status, kind, content = error.code, error.headers["Content-Type"], error.read()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_page_works_behind_a_path_prefix(tab, url):
    with stripping_proxy(url, "/team/features") as proxied:
        shown = tab()
        for view in ("overview", "features/route", "api"):
            page = shown.open(proxied, view)
        page.goto(f"{proxied}/?interval=50#/features/route")
        page.wait_for_selector("#keys-origin")
        page.fill("#keys-origin", "EWR")
        page.fill("#keys-carrier", "UA")
        page.get_by_role("button", name="Ask", exact=True).click()
        shown.until(lambda: "As of" in shown.text())
        assert shown.complaints == []


def test_a_thousand_group_bys_are_listed_in_part_and_all_are_found(tab):
    fetcher = Answering()
    fetcher.targets = {
        f"group_{number:04}": Target(
            f"group_{number:04}", "group_by", "c0ffee", {"k": "string"}, {}, {"count": "long"}, ("route",)
        )
        for number in range(1_000)
    }
    with running_server(http_app(fetcher)) as url:
        shown = tab()
        page = shown.open(url, "features")
        print("first view of 1,000 GroupBys, ms:", shown.times())
        assert "100 of 1,000 shown" in shown.text()
        assert page.locator("tbody tr").count() == 100
        page.fill("#filter", "0987")
        shown.until(lambda: page.locator("tbody tr").count() == 1)
        assert "group_0987" in shown.text()
        page = shown.open(url, "api", 5)
        shown.until(lambda: "shown" in shown.text())
        assert page.locator("details").count() <= 60
        page.fill("#filter", "group_0987")
        shown.until(lambda: page.locator("details").count() == 2)


def test_fifty_updates_a_second_pile_up_neither_requests_nor_elements(tab, world, url):
    shown = tab()
    page = shown.page
    under_way, most = set(), {}

    def began(request):
        if request.url.endswith(".json"):
            under_way.add(request)
            path = request.url
            most[path] = max(most.get(path, 0), sum(each.url == path for each in under_way))

    page.on("request", began)
    page.on("requestfinished", lambda request: under_way.discard(request))  # noqa: PLW0108 - Playwright marks what it is given
    page.goto(f"{url}/?interval=20#/caches")
    world.ask(100)
    shown.drawn(20)
    elements = page.evaluate("document.querySelectorAll('*').length")
    world.ask(100)
    began = page.evaluate("performance.now()")
    shown.drawn(50)
    print("50 updates, ms:", page.evaluate("performance.now()") - began)
    assert page.evaluate("document.querySelectorAll('*').length") == pytest.approx(elements, abs=20)
    assert max(most.values()) == 1
    assert shown.complaints == []


def test_what_is_typed_while_the_page_asks_is_asked_for_next(tab, url):
    shown, held = tab(), []
    page = shown.page

    def hold_first(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/ui/features.json*", hold_first)
    page.goto(f"{url}/?interval=3600000#/features")
    shown.until(lambda: held)
    page.fill("#filter", "airc")
    held[0].continue_()
    shown.until(lambda: page.locator("tbody tr").count() == 1)
    assert page.inner_text("tbody th") == "aircraft"


def test_theme_and_interval_can_be_chosen(tab, url):
    shown = tab(theme="light")
    page = shown.open(url)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark"
    assert page.evaluate(background) != light
    page.select_option("#interval", "0")
    page.wait_for_timeout(200)
    still = shown.updates()
    page.wait_for_timeout(300)
    assert shown.updates() == still
    page.select_option("#interval", "200")
    shown.drawn()


@pytest.mark.parametrize(
    ("name", "view", "theme", "width"),
    [
        ("overview", "overview", "light", 1200),
        ("overview-dark", "overview", "dark", 1200),
        ("caches", "caches", "light", 1200),
        ("features", "features/route", "light", 1200),
    ],
)
def test_pictures_for_the_docs(tab, world, url, pictures, name, view, theme, width):
    shown = tab(width=width, height=780, theme=theme)
    page = shown.open(url, view)
    if view.startswith("features/"):
        page.fill("#keys-origin", "EWR")
        page.fill("#keys-carrier", "UA")
        page.get_by_role("button", name="Ask", exact=True).click()
        shown.until(lambda: "As of" in shown.text())
    else:
        for asked in (30, 40, 60, 20, 50):
            world.ask(asked)
            shown.drawn()
    shown.picture(pictures / f"{name}.png")
    assert 5_000 < (pictures / f"{name}.png").stat().st_size < 100_000
