"""What a run shows: plain lines where there is no terminal, one table, one picture, one JSON."""

import io

from rich.console import Console

from millpond.demo.report import (
    CacheCount,
    Display,
    Measure,
    Outcome,
    caches_json,
    describe,
    picture,
    summary,
    total_caches,
)

STEPS = [
    Measure("stream", 2.0, 1000, {"planes": CacheCount(600, 400), "weather": CacheCount(1000, 0)}),
    Measure("stream", 1.0, 1000, {"planes": CacheCount(900, 100), "weather": CacheCount(1000, 0)}),
    Measure("serve", 0.5, 200, {"batch_irs": CacheCount(150, 50)}),
    Measure("http", 1.0, 200, {"batch_irs": CacheCount(200, 0)}),
]


def test_elsewhere_than_on_a_terminal_every_step_is_one_plain_line() -> None:
    out = io.StringIO()
    with Display(out=out) as display:
        display.expect(2000)
        display.stage("streaming")
        for step in STEPS[:3]:
            display.step(step)
    assert out.getvalue().splitlines() == [
        "[1] streaming",
        "batch 1  1,000 of 2,000 events  500 events/s  hit rates: planes 60 %, weather 100 %",
        "batch 2  2,000 of 2,000 events  667 events/s  hit rates: planes 75 %, weather 100 %",
        "round 1  200 requests in-process  400 requests/s  hit rates: batch_irs 75 %",
    ]


def test_quiet_says_nothing() -> None:
    out = io.StringIO()
    with Display(quiet=True, out=out) as display:
        display.stage("streaming")
        display.step(STEPS[0])
    assert out.getvalue() == ""


def test_a_cache_that_nobody_asked_has_no_rate() -> None:
    assert caches_json({"idle": CacheCount()}) == {"idle": {"hits": 0, "misses": 0, "hit_rate": None}}
    assert describe([Measure("stream", 1.0, 5, {"idle": CacheCount()})], 5) == "batch 1  5 of 5 events  5 events/s"


def test_the_summary_holds_the_result_the_facts_and_the_caches() -> None:
    out = io.StringIO()
    outcome = Outcome(2000, 3.0, 666.7, 48, 1, caches_json(total_caches(STEPS)), resumed=True)
    summary(outcome, {"late records": "17"}, Console(file=out, width=100))
    for text in ("2,000", "3.0 (resumed)", "late records", "1,500 hits, 500 misses, 75.0 %", "mismatches", "48"):
        assert text in out.getvalue()


def test_the_picture_is_a_png_also_of_a_run_that_served_nobody() -> None:
    for steps in (STEPS, STEPS[:2], []):
        assert picture(steps, "title").startswith(b"\x89PNG")
