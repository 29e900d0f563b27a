"""No page has a measurement that somebody typed: such a figure stays when what it measures changes.

What was measured stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`, where `make figures` copies it
from a result file.
Any other figure with a unit of time, memory or ratio must be a setting, whose place in the code stands here; a figure
of others, with its source; or a share of counts that stand beside it.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.figures import pages

ROOT = Path(__file__).parents[1]
NAMES = [str(page.relative_to(ROOT)) for page in pages()]

SETTINGS = {
    "docs/explanation/architecture.md": {
        "1 MB": "millpond.state.checkpoint.format.segment.MAX_SEGMENT_BYTES",
        "256 MiB": "millpond.spark.shuffle.spool.MEMORY_BYTES",
    },
    "docs/explanation/checkpoints.md": {
        "1 MB": "millpond.state.checkpoint.format.segment.MAX_SEGMENT_BYTES",
        "8 MB": "millpond.state.checkpoint.segment_spool.MEMORY_BYTES",
        "4 MB": "millpond.state.checkpoint.savepoint._FILE_BYTES",
    },
    "docs/explanation/spillable.md": {
        "20 ms": "millpond.state.spillable.maintenance.BUSY_SLICE_MS",
        "60 ms": "millpond.state.spillable.maintenance.URGENT_SLICE_MS",
        "2 s": "millpond.state.spillable.options.SpillableSettings.gc_time_threshold_ms",
        "64 KB": "millpond.state.spillable.spill_file.FAULT_BYTES",
    },
    "docs/explanation/state-hosts.md": {"64 MiB": "millpond.spark.host.memory.MINIMUM_BYTES"},
    "docs/explanation/state.md": {
        "2 KB": "millpond.state.rocksdb.lists.CHUNK_BYTES",
        "8 MiB": "millpond.state.rocksdb.database.WRITE_BUFFER_BYTES",
    },
    "docs/explanation/tiles.md": {"1 KB": "millpond.spark.features.tiles.leaves.LEAF_BYTES"},
    "docs/how-to/lookup.md": {
        "5 s": "millpond.spark.lookup.shared.members.BEAT_MS",
        "30 s": "millpond.spark.lookup.shared.owner.GONE_MS",
    },
    "docs/how-to/serve.md": {"5 seconds": "millpond.serving.http.limits.Limits.drain_ms"},
    "docs/reference/options.md": {"64 MiB": "millpond.spark.shuffle.arrow_lots.BYTES_OF_A_BATCH"},
    "docs/reference/serving-options.md": {"50 MB": "millpond.serving.groups.cache_options.DEFAULT_BYTES"},
}
"""Figures of each page that are settings, and what they are in the code: bytes or milliseconds."""

OF_OTHERS = {
    "docs/explanation/serving-speed.md": {"310 µs": "Feast 0.67, as the project's requirements have it"},
    "docs/explanation/spillable.md": {"566 MB": "the state of FLIP-50's word count, as its preview release tells it"},
    "docs/reference/options.md": {"256 MiB": "1 << 28, which stands before it, in words"},
}
"""Figures of each page that nobody here measured, and who says them."""

_LEFT_OUT = re.compile(
    r"<!-- figures: \w+ -->.*?<!-- end of figures -->|^```.*?^```$|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_SHARE = re.compile(r"(?P<part>\d[\d,]*)(?: [a-z ]*)? \((?P<percent>[\d.]+) %\)")
_FIGURE = re.compile(
    r"(?<![\w.,])\d[\d,.]*[ -]?"
    r"(?:(?:[nµu]?s|ms|seconds?|[KMG]i?B)(?:/s)?|[×%]|times (?:as|faster|slower|less|more))(?!\w)"
    r"|(?<![\w.,])\d[\d,.]* (?:rows|records|events|keys|requests)(?:/s| a second| per second)"
)
_UNITS = {
    "ms": (1,),
    "s": (1_000,),
    "seconds": (1_000,),
    "KB": (1_000, 1 << 10),
    "MB": (1_000_000, 1 << 20),
    "MiB": (1 << 20,),
}
FLIGHTS = 336_776
"""All of the data set that pages give shares of; `tests/demo/test_data.py` counts them."""


def prose(text: str) -> str:
    """A page without what was copied from result files, code, comments and links."""
    return _LEFT_OUT.sub(lambda match: "\n" * match[0].count("\n"), text)


def figures(text: str) -> Iterator[str]:
    """Every figure of a page that looks measured, but shares of counts that stand beside them."""
    yield from _FIGURE.findall(_SHARE.sub("", prose(text)))


@pytest.mark.parametrize("page", NAMES)
def test_a_figure_in_prose_is_a_setting_or_has_a_source(page):
    known = SETTINGS.get(page, {}).keys() | OF_OTHERS.get(page, {}).keys()
    typed = [figure for figure in figures((ROOT / page).read_text()) if figure not in known]
    assert typed == [], (
        "these figures were typed: quote the result file (see benchmarks/figures.py), or, if they are settings, say in "
        "SETTINGS where they stand in the code"
    )


@pytest.mark.parametrize(
    ("page", "figure", "place"), [(page, *each) for page, settings in SETTINGS.items() for each in settings.items()]
)
def test_a_setting_in_prose_is_the_one_in_the_code(page, figure, place):
    assert figure in figures((ROOT / page).read_text()), "the page does not have it any more"
    number, unit = figure.split()
    assert setting(place) in [int(number) * each for each in _UNITS[unit]]


@pytest.mark.parametrize(("page", "figure"), [(page, figure) for page in OF_OTHERS for figure in OF_OTHERS[page]])
def test_a_figure_of_others_is_still_on_its_page(page, figure):
    assert figure in figures((ROOT / page).read_text())


@pytest.mark.parametrize("page", NAMES)
def test_a_share_is_that_of_the_count_before_it(page):
    for share in _SHARE.finditer(prose((ROOT / page).read_text())):
        digits = len(share["percent"].partition(".")[2])
        percent = 100 * int(share["part"].replace(",", "")) / FLIGHTS
        assert f"{percent:.{digits}f}" == share["percent"], share[0]


def setting(place: str) -> int:
    """A constant of a module, or the default of a class's field, by its dotted name."""
    owner, _, name = place.rpartition(".")
    try:
        return getattr(import_module(owner), name)
    except ModuleNotFoundError:
        module, _, class_name = owner.rpartition(".")
        return getattr(getattr(import_module(module), class_name)(), name)


def test_what_looks_measured_is_found_and_what_is_copied_is_not():
    page = (
        "It takes 8.1 µs, 3.7 times as long, or 2.99 × more: 40 MB, 1,200 rows/s, 27 %.\n"
        "A key has 3 parts, hops of 5 minutes, and `ttl_ms` of `20 ms`.\n"
        "Early are 33,677 flights (10 %).\n"
        "<!-- figures: flip50 -->\n| 9.9 ms |\n<!-- end of figures -->\n"
        "```python\nwait = '7 ms'\n```\n"
    )
    assert list(figures(page)) == ["8.1 µs", "3.7 times as", "2.99 ×", "40 MB", "1,200 rows/s", "27 %"]
