"""Loads an HTTP service and measures it: raw connections that are kept alive, each with one call at a time.

Other benchmarks import it. By itself it loads a URL:

    .venv/bin/python -m benchmarks.http_load http://127.0.0.1:8765/v1/fetch/route --body '{"requests": [...]}'

A general HTTP client would take longer than the service it measures. Here a call is one write of bytes
that were prepared before, and an answer is read as far as its length says. The load generator runs in a
process of its own, with one thread.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

_LENGTH = b"content-length: "


class _Connection(asyncio.Protocol):
    """Sends calls one after the other, each as soon as the answer before is whole."""

    def __init__(self, calls: Sequence[bytes], first: int, until: float) -> None:
        self.calls = calls
        self.place = first
        self.until = until
        self.seconds: list[float] = []
        self.errors = 0
        self.received = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.calls[self.place % len(self.calls)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        self.received += data
        head = self.received.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.received.lower().index(_LENGTH, 0, head + 2) + len(_LENGTH)
        if len(self.received) < head + 4 + int(self.received[at : self.received.index(b"\r", at)]):
            return
        now = time.perf_counter()
        self.seconds.append(now - self.began)
        if not self.received.startswith(b"HTTP/1.1 200"):
            self.errors += 1
        self.received = b""
        if now < self.until:
            self.send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own signature
        if time.perf_counter() < self.until:
            self.errors += 1
        self.ended.set_result(None)


async def _load(host: str, port: int, calls: Sequence[bytes], connections: int, seconds: float) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    opened: list[_Connection] = []
    for number in range(connections):
        first = number * len(calls) // connections
        connection = _Connection(calls, first, began + seconds)
        await loop.create_connection(lambda made=connection: made, host, port)  # type: ignore[misc]
        opened.append(connection)
    await asyncio.gather(*(connection.ended for connection in opened))
    took = time.perf_counter() - began
    latencies = sorted(latency for connection in opened for latency in connection.seconds)
    return {
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / took, 1),
        "p50_ms": round(1_000 * latencies[len(latencies) // 2], 3),
        "p99_ms": round(1_000 * latencies[len(latencies) * 99 // 100], 3),
        "errors": sum(connection.errors for connection in opened),
    }


def call_bytes(url: str, body: bytes) -> bytes:
    """A POST of JSON as it goes over the connection."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def load(url: str, bodies: Sequence[bytes], *, connections: int = 8, seconds: float = 3.0) -> dict[str, Any]:
    """Load a URL with the bodies in turn, from a process of its own.

    Returns:
        `requests`, `requests_per_second`, `p50_ms`, `p99_ms` and `errors` (answers that are not 200, and
        connections that were closed).
    """
    given = json.dumps(
        {"url": url, "bodies": [body.decode() for body in bodies], "connections": connections, "seconds": seconds}
    )
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "-"],
        input=given,
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 60,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _run(url: str, bodies: Sequence[bytes], connections: int, seconds: float) -> dict[str, Any]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    calls = [call_bytes(url, body) for body in bodies]
    loading = _load(parts.hostname, parts.port, calls, connections, seconds)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(loading)
    return uvloop.run(loading)


def main() -> None:
    """Load what the command line says, or what stdin says if that is `-`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="what to load; - reads url, bodies, connections and seconds from stdin, as JSON")
    parser.add_argument("--body", default="{}")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    if chosen.url == "-":
        given = json.load(sys.stdin)
        bodies = [body.encode() for body in given["bodies"]]
        print(json.dumps(_run(given["url"], bodies, given["connections"], given["seconds"])))
    else:
        print(json.dumps(_run(chosen.url, [chosen.body.encode()], chosen.connections, chosen.seconds)))


if __name__ == "__main__":
    main()
