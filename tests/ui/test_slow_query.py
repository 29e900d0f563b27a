"""A query that is slow on purpose: with the page alone, a newcomer finds out why. Run where Spark's session is."""

import hashlib

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import keyed, ui
from tests.spark.streams import FileStream

ROUNDS = 120_000


class Signing(StatefulProcessor):
    """Signs each user's visits, which costs far more than to count them."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "count long")

    def handleInputRows(self, key, rows, timerValues):
        before = self.seen.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self.seen.update((count,))
        signed = hashlib.pbkdf2_hmac("sha256", key[0].encode(), b"salt", ROUNDS).hex()
        yield Row(user=key[0], signed=signed)

    def close(self):
        pass


@pytest.fixture(scope="module")
def url(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    stream = FileStream(spark, folder)
    users = ["ann", "bob", "cyd", "dan", "eve", "fay"]
    for batch in range(3):
        stream.add([(user, batch, batch) for user in users])
    with ui(spark, port=0, state=[str(folder / "checkpoint")]) as page:
        signed = keyed(stream.frame(), "user").transformWithState(
            Signing(), "user string, signed string", "Update", "None"
        )
        writer = signed.writeStream.outputMode("update").format("noop").queryName("signatures")
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        yield page.url


def test_the_page_says_that_the_processors_own_code_is_slow(tab, url, pictures):
    shown = tab()
    page = shown.open(url)
    page.click("nav >> text=Keyed queries")
    shown.until(lambda: page.locator(".slowest").count() > 0)
    if page.locator("#query").is_visible():
        page.select_option("#query", label="signatures")
    shown.until(lambda: "signatures" in shown.text() and "Signing" in shown.text())
    slowest = page.inner_text("section[aria-label='Operator']:has-text('Signing') .slowest")
    assert slowest.startswith("Most of the operator's time goes to handlers")
    assert "Look into handleInputRows" in slowest
    assert shown.violations() == {}
    shown.picture(pictures / "queries.png", full_page=True)


def test_the_state_that_the_query_left_can_be_searched(tab, url, pictures):
    shown = tab(height=700)
    page = shown.open(url, "state")
    shown.until(lambda: page.locator("#state-name option").count() == 1)
    page.fill("#state-search", "EVE")
    page.get_by_role("button", name="Show rows").click()
    shown.until(lambda: "1 row." in shown.text())
    assert '{"user":"eve"}' in shown.text()
    assert '{"count":3}' in shown.text()
    shown.picture(pictures / "state.png")
    assert shown.complaints == []
