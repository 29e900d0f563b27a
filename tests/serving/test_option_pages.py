"""The pages of options have every option of the code, and no other."""

import inspect
import re
from pathlib import Path

import click
import msgspec

from millpond.commands.serve import serve
from millpond.features import GroupBy
from millpond.kv.redis.options import _OPTIONS as REDIS_OPTIONS
from millpond.kv.redis.options import RedisOptions
from millpond.serving import Fetcher
from millpond.serving.http import Limits

DOCS = Path(__file__).parents[2] / "docs"
LIMITS = {field.name: field.default for field in msgspec.structs.fields(Limits)}


def rows(page, after):
    """The named options of the first table behind a text, each with its default as the page has it."""
    text = (DOCS / page).read_text()
    assert text.count(after) == 1
    table = re.search(r"(?:^\|.*\n)+", text.partition(after)[2], re.MULTILINE)[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, default, *_ = [cell.strip() for cell in line.strip("|").split("|")]
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), default)
    return found


def number(text):
    """The number that a page writes with commas or in backticks; None if there is none."""
    bare = text.strip("`").replace(",", "")
    return int(bare) if bare.isdecimal() else None


def test_every_argument_of_a_fetcher_is_on_the_page_with_its_default():
    said = rows("reference/serving-options.md", "## Of a fetcher")
    arguments = inspect.signature(Fetcher).parameters
    assert set(said) == set(arguments)
    for name, argument in arguments.items():
        if type(argument.default) is int:
            assert number(said[name]) == argument.default
    assert said["stale"] == f'`"{arguments["stale"].default}"`'


def test_every_flag_of_the_server_is_on_the_page_with_its_default():
    said = rows("reference/serving-options.md", "## Of `millpond serve`")
    options = [one for one in serve.params if isinstance(one, click.Option) and one.name not in LIMITS]
    flags = {flag: one for one in options for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}
    assert set(said) == set(flags) - {"--help"}
    for flag, option in flags.items():
        if isinstance(option.default, int | str) and not isinstance(option.default, bool):
            assert said[flag] == f"`{option.default}`"


def test_every_limit_is_on_the_page_and_a_flag_of_the_server():
    said = rows("reference/http.md", "## Limits")
    assert {name: number(default) for name, default in said.items()} == LIMITS
    flags = {flag for one in serve.params for flag in one.opts}
    assert {f"--{name.replace('_', '-')}" for name in LIMITS} <= flags
    assert {one.name: one.default for one in serve.params if one.name in LIMITS} == LIMITS


def test_every_serving_option_of_a_group_by_is_on_the_page():
    said = rows("reference/serving-options.md", "## Of a GroupBy")
    fields = inspect.signature(GroupBy).parameters
    assert set(said) == {name for name in fields if "fetcher" in name}


def test_every_option_of_a_redis_store_is_in_the_guide_with_its_default():
    said = rows("how-to/kv-stores.md", 'as in `RedisStore("redis://localhost", prefix="shop")`.')
    assert set(said) == REDIS_OPTIONS
    defaults = RedisOptions.__dataclass_fields__
    for name in ("prefix", "pool_size", "timeout_ms", "retry_ms", "read_from"):
        assert said[name] == f"`{defaults[name].default}`"
