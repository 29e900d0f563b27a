"""A real browser for the tests of the page: Debian's Chromium, driven by Playwright, and checked with axe-core.

Without a Chromium these tests are skipped; `scripts/test_servers.sh` installs one where it may.
"""

import io
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOW = "there is no chromium; as root: apt-get install chromium"


@pytest.fixture(scope="module")
def browser():
    """One Chromium for the tests of a file; no longer, for asyncio runs nothing else in the thread that drives it."""
    if CHROMIUM is None:
        pytest.skip(HOW)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


class Tab:
    """A page of its own, with all that the browser complained about."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        self.requested = []
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))

    def open(self, url, view="overview", updates=2):
        """Open a view, and wait until it was drawn some times."""
        self.page.goto(f"{url}/?interval=50#/{view}")
        self.drawn(updates)
        return self.page

    def drawn(self, more=2):
        """Wait for some more updates of the view."""
        wanted = self.updates() + more
        self.until(lambda: self.updates() >= wanted)

    def updates(self):
        """How often the view was drawn since the page was loaded."""
        return self.page.evaluate("Number(document.body.dataset.updates ?? 0)")

    def times(self):
        """When the page was there, in milliseconds since the navigation began, by the browser's own entries."""
        return self.page.evaluate(
            """() => Object.fromEntries(["paint", "mark"].flatMap((type) => performance.getEntriesByType(type))
                 .map((each) => [each.name, each.startTime]))"""
        )

    def until(self, condition):
        """Look again and again; Playwright's own way needs eval, which the page's policy forbids."""
        for _ in range(1_000):
            if condition():
                return
            self.page.wait_for_timeout(15)
        raise AssertionError(f"this did not come to be; the page says: {self.text()[:2_000]}")

    def text(self):
        return self.page.inner_text("main")

    def picture(self, path, **options):
        """Save what is shown, in few colours: the docs' pictures are small."""
        from PIL import Image

        shot = Image.open(io.BytesIO(self.page.screenshot(**options))).convert("RGB")
        shot.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)

    def violations(self):
        """What axe-core finds wrong, by rule, with the places."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return {each["id"]: [node["html"][:200] for node in each["nodes"]] for each in found}


@pytest.fixture
def tab(browser):
    """Makes tabs: with a width and a theme."""
    with ExitStack() as stack:

        def tab(width=1200, height=900, theme="light"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            context.set_default_timeout(15_000)
            stack.callback(context.close)
            return Tab(context.new_page())

        yield tab


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Where screenshots go: `make screenshots` has them written into the docs."""
    folder = Path(os.environ.get("MILLPOND_SCREENSHOTS") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
