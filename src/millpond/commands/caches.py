"""`millpond caches`: gives advice by recorded hit-rate curves, and replays recorded traces."""

import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from millpond.cache.api import Policy
from millpond.cache.curves import CacheReport, Share, advice_on, best_split, smallest_size
from millpond.cache.curves.picture import draw
from millpond.cache.curves.report import bytes_text
from millpond.cache.curves.simulation import simulate as simulated
from millpond.cache.curves.simulation import sizes_for
from millpond.cache.curves.trace import read_trace
from millpond.commands.options import json_option, quiet_option, tell
from millpond.commands.progress import Progress
from millpond.commands.tables import text_table
from millpond.errors import DataError, OptionError, UnavailableError
from millpond.options import size_bytes

PATH = "/v1/caches"
_TIMEOUT_SECONDS = 10


class View(msgspec.Struct, frozen=True):
    """The caches that a server reports."""

    caches: list[CacheReport]


@click.group()
def caches() -> None:
    """Size caches by their hit-rate curves."""


@caches.command(short_help="Tell which caches are too small, too large or useless.")
@click.argument("source", metavar="URL|FILE")
@click.option("--hit-rate", type=click.FloatRange(0, 1), help="Show the smallest size of each cache for this hit rate.")
@click.option("--budget", metavar="SIZE", help="Show how to divide this many bytes, such as 2GB, among all caches.")
@click.option("--api-key", envvar="MILLPOND_API_KEY", help="The server's API key; by default that in MILLPOND_API_KEY.")
@json_option
def advise(*, source: str, hit_rate: float | None, budget: str | None, api_key: str | None, as_json: bool) -> None:
    """Tell which caches are too small, too large or useless, and how to split a budget over them.

    URL is that of a server (`millpond serve --hit-rate-curves`), such as http://127.0.0.1:8765. FILE has the answer of
    such a server at /v1/caches.
    """
    reports = _view(source, api_key).caches
    if not reports:
        raise DataError(
            f"{source}: no cache is recorded there; start the server with --hit-rate-curves, or call "
            "millpond.cache.curves.record(cache)"
        )
    result: dict[str, Any] = {"advice": [advice_on(report) for report in reports]}
    lines = [_text_of_advice(reports)]
    if hit_rate is not None:
        sizes = {report.name: smallest_size(report, hit_rate) for report in reports}
        result["smallest"] = sizes
        lines += ["", f"smallest size for a hit rate of {_percent(hit_rate)}:"]
        for report in reports:
            size = sizes[report.name]
            none = f"no size; {_percent(report.curve.highest())} with room for all keys"
            lines.append(f"  {report.name}: {none if size is None else report.size_text(size.entries, size.bytes)}")
    if budget is not None:
        split = _split(reports, budget)
        result["split"] = split
        lines += ["", f"best split of {budget}:", text_table(split, list(split[0]))]
    tell(result, as_json=as_json, text="\n".join(lines))


@caches.command()
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(("lru", "w-tinylfu")), help="The policy; by default both."
)
@click.option(
    "--size", "sizes", multiple=True, type=click.IntRange(min=1), help="The size in entries; can be repeated."
)
@click.option("--picture", type=click.Path(path_type=Path), metavar="PNG", help="Draw the hit rates into this file.")
@quiet_option
@json_option
def simulate(
    *,
    trace: Path,
    policies: tuple[Policy, ...],
    sizes: tuple[int, ...],
    picture: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Replay TRACE on caches of several sizes and policies.

    TRACE is a file that `millpond serve --cache-traces` wrote, or one of cache2k (.trc.xz, .trace.xz).
    """
    keys = read_trace(trace)
    chosen = sorted(set(sizes)) or sizes_for(keys)
    wanted: tuple[Policy, ...] = policies or ("lru", "w-tinylfu")
    with Progress(f"{len(keys):,} requests on {len(chosen)} sizes", len(chosen) * len(wanted), quiet=quiet) as progress:
        found = simulated(
            keys, chosen, wanted, lambda one: progress.step(f"{one.policy} {one.entries:,}: {_percent(one.hit_rate)}")
        )
    rows = [
        {"entries": size, **{one.policy: _percent(one.hit_rate) for one in found if one.entries == size}}
        for size in chosen
    ]
    result = [{**msgspec.to_builtins(one), "hit_rate": one.hit_rate} for one in found]
    tell({"simulated": result}, as_json=as_json, text=text_table(rows, list(rows[0])))
    if picture is not None:
        draw(found, trace.name, picture)


def _view(source: str, api_key: str | None) -> View:
    content = _fetched(source, api_key) if source.startswith(("http://", "https://")) else _read(source)
    try:
        return msgspec.json.decode(content, type=View)
    except msgspec.MsgspecError as error:
        raise DataError(f"{source}: expected the JSON of {PATH}: {error}") from error


def _fetched(url: str, api_key: str | None) -> bytes:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(url.rstrip("/").removesuffix(PATH) + PATH, headers=headers)  # noqa: S310 - only HTTP
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - only HTTP
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        raise OptionError(
            f"{request.full_url} answers {error.code}: {error.read().decode(errors='replace')}"
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"{request.full_url} does not answer: {error}; start the server, or mend the URL"
        ) from error


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise OptionError(f"{file}: expected the URL of a server, or a file with its caches: {error}") from error


def _text_of_advice(reports: Sequence[CacheReport]) -> str:
    rows = []
    for report in reports:
        advice = advice_on(report)
        size = report.size_text(report.present, report.max_bytes or report.curve.bytes_of(report.present))
        rows.append(
            {
                "cache": report.name,
                "policy": report.policy,
                "size": size,
                "requests": f"{report.requests:,}",
                "hit rate": _percent(advice.present_rate),
                "at most": _percent(advice.highest_rate),
            }
        )
    findings = [f"{report.name}: {finding.text}" for report in reports for finding in advice_on(report).findings]
    return "\n".join([text_table(rows, list(rows[0])), "", *findings])


def _split(reports: Sequence[CacheReport], budget: str) -> list[dict[str, str]]:
    try:
        size = size_bytes(1)(budget)
    except ValueError as error:
        raise OptionError(f"--budget: expected {error}, got {budget!r}") from error
    weighed = [report for report in reports if report.curve.points and report.curve.points[-1].bytes]
    if not weighed:
        raise DataError("--budget: no cache has weighed an entry yet, so bytes cannot be split; ask the caches first")
    split = best_split({report.name: Share(report.curve, report.requests) for report in weighed}, size)
    return [
        {
            "cache": report.name,
            "size": bytes_text(split[report.name]),
            "entries": f"{report.curve.entries_in(split[report.name]):,.0f}",
            "hit rate": _percent(report.curve.at_bytes(split[report.name])),
            "now": _percent(report.present_rate()),
        }
        for report in weighed
    ]


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
