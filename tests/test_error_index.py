"""The page of errors is what the code says, and a reader finds the message that a program showed."""

import re
import runpy
from pathlib import Path

import pytest

from millpond import MillpondError
from millpond.cache import new_cache
from millpond.features import Aggregation, Field, GroupBy
from millpond.kv import open_store
from millpond.lookup import LookupOptions
from millpond.state import Harness, StateOptions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/errors.md"


@pytest.fixture(scope="module")
def index():
    return runpy.run_path(str(ROOT / "scripts/error_index.py"))


def test_the_page_is_what_the_code_says(index):
    assert PAGE.read_text() == index["page"](), "write it anew: .venv/bin/python scripts/error_index.py"


def test_every_class_has_its_section(index):
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == [each.__name__ for each in index["classes"]()[1:]]
    assert {"OptionError", "PartlyReadError", "DeletedStateError"} <= set(sections)


def test_almost_every_call_of_a_class_has_its_message(index):
    messages = list(index["messages"]({each.__name__ for each in index["classes"]()}))
    assert len(messages) > 600
    assert len([message for message in messages if not message.text]) < len(messages) / 40


class _Nothing:
    """An operator without its methods."""


WRONG = {
    "a cache without a bound": lambda: new_cache("prices"),
    "an unknown store": lambda: open_store("mongo://here"),
    "an unknown option of state": lambda: StateOptions.parse({"state.backend.typ": "heap"}),
    "an unknown option of a lookup": lambda: LookupOptions.parse({"lookup.cash": "FULL"}),
    "an unknown operation": lambda: GroupBy("g", (Field("k", "long"),), aggregations=(Aggregation("sums", "k"),)),
    "no operator": lambda: Harness(_Nothing, key=str, key_type=str),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_the_message_of_a_real_error_is_on_the_page(what):
    with pytest.raises(MillpondError) as caught:
        WRONG[what]()
    lines = [line.removeprefix("- ").strip() for line in str(caught.value).split("\n")]
    section = PAGE.read_text().partition(f"## {type(caught.value).__name__}\n")[2]
    says = [re.search(r"^- (`+) ?(.*?) ?\1", item)[2] for item in re.findall(r"^- `.*$", section, re.MULTILINE)]
    patterns = [
        re.compile(r".*?".join(map(re.escape, re.split(r"\{[^}]*\}", text)))) for text in says if len(text) > 12
    ]
    assert [line for line in lines if any(pattern.search(line) for pattern in patterns)] != [], str(caught.value)
