"""`millpond doctor`: finds problems of this machine or of a session's settings, and says how to solve them."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--conf",
    type=click.Path(path_type=Path),
    help="Look at the session settings of this file too, which is like spark-defaults.conf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of what was found.")
def doctor(*, conf: Path | None, as_json: bool) -> None:
    """Check Java, PySpark, extras, the temporary folder, disk, cores and session settings.

    Says how to solve each problem. The exit code is 1 if there is one.
    """
    from millpond import doctor as examination

    found = examination.findings(None if conf is None else examination.read_settings(conf))
    click.echo(examination.as_json(found) if as_json else examination.as_text(found))
    sys.exit(int(any(finding.level == "problem" for finding in found)))
