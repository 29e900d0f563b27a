"""`millpond doctor`: finds problems of this machine or of a session's settings, and says how to solve them."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--conf",
    type=click.Path(path_type=Path),
    help="Check the session settings of this file too. It has the format of spark-defaults.conf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
def doctor(*, conf: Path | None, as_json: bool) -> None:
    """Check Java, PySpark, extras, the temporary folder, disk, cores and session settings.

    Says how to solve each problem. The exit code is 1 if there is one.
    """
    from millpond import doctor as examination

    found = examination.findings(None if conf is None else examination.read_settings(conf))
    click.echo(examination.as_json(found) if as_json else examination.as_text(found))
    sys.exit(int(any(finding.level == "problem" for finding in found)))
