"""The help of every command: the options that commands share look alike, and Spark is not needed to read it."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from millpond.cli import COMMANDS, cli

ON_SPARK = ("backfill", "check", "stream", "training-set", "upload")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(command):
    ran = CliRunner().invoke(cli, [command, "--help"])
    assert ran.exit_code == 0
    assert ran.output.startswith(f"Usage: cli {command} [OPTIONS]")
    if command not in ("caches", "serve", "state", "ui"):  # the commands of `caches` and `state` have it each
        assert "--json" in ran.output


@pytest.mark.parametrize("command", ON_SPARK)
def test_commands_on_spark_share_their_options(command):
    told = CliRunner().invoke(cli, [command, "--help"]).output
    assert f"Usage: cli {command} [OPTIONS] DEFINITIONS..." in told
    for option in ("--name NAME", "--master URL", "--conf KEY=VALUE", "--table NAME=PATH", "--json", "--quiet"):
        assert option in told


@pytest.mark.parametrize("command", ["serve", "stream", "upload"])
def test_a_store_whose_url_has_a_password_may_be_named_in_the_environment(command, monkeypatch):
    told = CliRunner().invoke(cli, [command, "--help"]).output
    assert "MILLPOND_STORE" in told
    monkeypatch.setenv("MILLPOND_STORE", "nosuch://:secret@host")
    ran = CliRunner().invoke(cli, [command, "nosuch.py"])
    assert "Missing option '--store'" not in ran.output
    monkeypatch.delenv("MILLPOND_STORE")
    assert "Missing option '--store'" in CliRunner().invoke(cli, [command, "nosuch.py"]).output


def test_the_help_of_a_command_loads_neither_spark_nor_a_server():
    code = (
        "import sys; from click.testing import CliRunner; from millpond.cli import cli\n"
        f"for one in {ON_SPARK!r}: assert CliRunner().invoke(cli, [one, '--help']).exit_code == 0\n"
        "assert not {'pyspark', 'uvicorn', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_command_ends_in_exit_code_2_and_the_nearest_one_is_suggested():
    ran = CliRunner().invoke(cli, ["uplaod"])
    assert ran.exit_code == 2
    assert "No such command 'uplaod'; did you mean 'upload'?" in ran.output


@pytest.mark.parametrize("group", ["caches", "state"])
def test_the_help_of_a_group_cuts_no_description_short(group):
    assert "..." not in CliRunner().invoke(cli, [group, "--help"]).output.partition("Commands:")[2]


def test_every_option_of_a_command_is_described():
    for command in COMMANDS:
        context = click.Context(cli)
        for each in _with_subcommands(cli.get_command(context, command)):
            lacking = [option.name for option in each.params if isinstance(option, click.Option) and not option.help]
            assert (each.name, lacking) == (each.name, [])


def _with_subcommands(command):
    return [command, *getattr(command, "commands", {}).values()]
