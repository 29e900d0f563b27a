"""The command line: `millpond COMMAND`, `millpond --help` and `millpond --version`.

Each command is a file of `millpond.commands` and is imported only when it runs. So `millpond --help` loads
neither Spark nor a server.

An error that Millpond raises on purpose is printed as one message, with exit code 2. Progress goes to stderr
and results to stdout, so that `--json` can be piped.
"""

import importlib
import sys
from importlib.metadata import version

from millpond.errors import MillpondError, MissingDependencyError
from millpond.suggestions import did_you_mean

try:
    import click
except ImportError as error:
    raise MissingDependencyError('The command line needs click. Run: pip install "millpond[cli]"') from error

COMMANDS = {
    "backfill": "Collect days of history into the hop table that uploads go on from.",
    "caches": "Advise on the sizes of caches, and replay recorded traces on them.",
    "check": "Compare logged answers with the training set at the same times.",
    "compile": "Show what definitions compile to, and what a change of them costs.",
    "demo": "Send a year of real flights through every package, and check the answers.",
    "doctor": "Check Java, PySpark, extras, the temporary folder, disk, cores and session settings.",
    "serve": "Serve the features of GroupBys and Joins over HTTP.",
    "state": "List, show, compare, save and import the state of queries and harnesses.",
    "stream": "Keep the tiles of a GroupBy up to date from its stream.",
    "training-set": "Compute the features of a Join as of the times of queries.",
    "ui": "Show the web page for stored state, and for the pages of services and Spark drivers.",
    "upload": "Upload the features of all events before a batch end.",
}
"""The commands and their descriptions. They are here so that `--help` need not import the commands."""


class _Commands(click.Group):
    """Imports a command at its first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if not ctx.resilient_parsing:  # click's own message suggests only commands that are imported
                ctx.fail(f"No such command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS) or '.'}")
            return None
        module = importlib.import_module(f"millpond.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("millpond"), prog_name="millpond")
def cli() -> None:
    """Keeps the state of PySpark streams warm."""


def main() -> None:
    """Run the command line; the entry point `millpond`."""
    try:
        cli()
    except MillpondError as error:
        click.echo(f"millpond: {error}", err=True)
        sys.exit(2)
