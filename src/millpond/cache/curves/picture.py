"""Draws the results of a simulation, with one line per policy."""

from collections.abc import Sequence
from pathlib import Path

from millpond.cache.curves.simulation import Simulated
from millpond.errors import MissingDependencyError


def draw(found: Sequence[Simulated], title: str, path: Path) -> None:
    """Draw the hit rates by size into a file, whose suffix sets the format.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError('Pictures need matplotlib. Run: pip install "millpond[pictures]"') from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for policy in dict.fromkeys(one.policy for one in found):
        of_policy = [one for one in found if one.policy == policy]
        axes.plot(
            [one.entries for one in of_policy], [100 * one.hit_rate for one in of_policy], marker="o", label=policy
        )
    axes.set_xscale("log")
    axes.set_xlabel("entries")
    axes.set_ylabel("hit rate, %")
    axes.set_title(title, loc="left")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(frameon=False)
    figure.savefig(path)
