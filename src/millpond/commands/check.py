"""`millpond check`: whether what was served is what the training set says."""

import sys
from dataclasses import asdict

import click

from millpond.commands.definitions import load_definitions
from millpond.commands.options import (
    chosen_target,
    definitions_argument,
    given_tables,
    json_option,
    spark_options,
    spark_session,
    target_option,
    tell,
)


@click.command()
@definitions_argument
@target_option
@click.option("--answers", required=True, metavar="PATH", help="The folder of the fetcher's answer log.")
@click.option("--examples", type=click.IntRange(min=0), default=3, show_default=True, help="Shown of each class.")
@spark_options
@json_option
def check(
    *,
    definitions: tuple[str, ...],
    name: str | None,
    answers: str,
    examples: int,
    master: str | None,
    settings: tuple[str, ...],
    tables: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare logged answers with the training set of DEFINITIONS; the exit code is 1 if an exact feature differs."""
    from millpond.spark import check as run_check

    target = chosen_target(load_definitions(definitions), name)
    spark = spark_session("check", master, settings)
    try:
        click.echo(f"checking {target.name}", err=True)
        logged = spark.read.parquet(answers)
        found = run_check(logged, target, tables=given_tables(spark, tables), examples=examples)
    finally:
        spark.stop()
    features = {feature: asdict(counts) for feature, counts in found.features.items()}
    shown = [asdict(example) for example in found.examples]
    lines = [f"{found.answers} answers", "feature: equal, arrived later, different, unavailable"]
    for feature, counts in found.features.items():
        lines.append(
            f"  {feature}: {counts.equal}, {counts.arrived_later}, {counts.different}, {counts.unavailable}"
            + ("" if counts.exact else " (a sketch)")
        )
    lines += [f"  example: {example}" for example in shown]
    result = {"answers": found.answers, "agrees": found.agrees, "features": features, "examples": shown}
    tell(result, as_json=as_json, text="\n".join(lines))
    sys.exit(0 if found.agrees else 1)
