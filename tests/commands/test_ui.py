"""`millpond ui` as it is run: over checkpoints, without Spark, until it is told to stop."""

import http.client
import json
import signal
import subprocess
import sys

import pytest

from millpond.state import Harness


class Clicks:
    def open(self, states):
        self.count = states.value("count", int, default=0)

    def process(self, user, click, context):
        self.count.update(self.count.get() + 1)
        yield user, self.count.get()


def started(*options):
    command = [sys.executable, "-c", "from millpond.cli import main; main()", "ui", "--port", "0", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_shows_the_checkpoints_that_are_named_until_it_is_stopped(tmp_path):
    location = str(tmp_path / "checkpoints")
    with Harness(Clicks, key=lambda click: click, key_type=str, storage=location) as harness:
        harness.process_many(["ada", "bob"])
        harness.checkpoint()
    process = started("--state", location)
    try:
        said = process.stdout.readline()
        assert said.startswith("millpond: showing the page on http://127.0.0.1:"), said + process.stderr.read()
        connection = http.client.HTTPConnection(said.split("//")[1].strip(), timeout=30)
        connection.request("GET", "/ui/state.json")
        found = json.loads(connection.getresponse().read())
        connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert [each["name"] for each in found["locations"]] == [location]
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is nothing to show"),
        (["localhost:8766"], "is no page"),
        (["--api-keys", "nowhere"], "nowhere cannot be read"),
    ],
)
def test_options_that_cannot_be_end_the_command_with_one_line(options, message):
    process = started(*options)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert message in errors
    assert errors.count("\n") == 1
