"""`millpond check`: compares the served answers with the training set."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from millpond.commands.options import shown_time, snapshots_end_option
from millpond.commands.spark_command import Given, on_spark, read_files

if TYPE_CHECKING:
    from millpond.spark.features.check import Example


@click.command()
@on_spark
@click.option("--answers", required=True, metavar="PATH", help="The folder of the fetcher's answer log.")
@snapshots_end_option
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="The number of examples to show for each class.",
)
def check(given: Given, *, answers: str, snapshots_end_ms: int | None, examples: int) -> None:
    """Compare logged answers with the training set of DEFINITIONS; the exit code is 1 if an exact feature differs."""
    from millpond.spark import check as run_check

    target = given.target
    with given.session("check", f"checking {target.name}") as spark:
        found = run_check(
            read_files(spark, "--answers", answers),
            target,
            tables=given.tables(spark),
            snapshots_end_ms=snapshots_end_ms,
            examples=examples,
        )
    features = {feature: asdict(counts) for feature, counts in found.features.items()}
    shown = [asdict(example) for example in found.examples]
    lines = [f"{found.answers} answers", "feature: equal, arrived later, different, unavailable"]
    for feature, counts in found.features.items():
        lines.append(
            f"  {feature}: {counts.equal}, {counts.arrived_later}, {counts.different}, {counts.unavailable}"
            + ("" if counts.exact else " (a sketch)")
        )
    lines += [_example(example) for example in found.examples if example.kind != "equal"]
    lines.append("the exact features agree" if found.agrees else "an exact feature differs")
    result = {"answers": found.answers, "agrees": found.agrees, "features": features, "examples": shown}
    given.tell(result, "\n".join(lines))
    sys.exit(0 if found.agrees else 1)


def _example(example: "Example") -> str:
    return (
        f"  {example.kind}: {example.feature} of {example.question} at {shown_time(example.time_ms)}: "
        f"logged {example.logged}, computed {example.computed}"
    )
