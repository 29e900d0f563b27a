"""The counts of all processes that share a port, in the answer of any of them.

Place on the data path: beside it. A scrape of `/metrics` reaches one process, whichever takes the
connection. That process asks the others over Unix sockets in a folder that only their user can read.

Invariant: a process that does not answer within `PEER_SECONDS` is left out of the answer and delays it no
longer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from millpond.metrics.families import Family

PEER_SECONDS = 1.0

_FAMILIES = msgspec.json.Decoder(list[Family])


class Peers:
    """One process among its peers: sends its own counts to each that connects, and asks for theirs.

    Args:
        folder: where each process has a socket.
        process: the number of this process.
        families: returns its counts.
    """

    def __init__(self, folder: Path, process: str, families: Callable[[], list[Family]]) -> None:
        self._folder = folder
        self._socket = folder / f"{process}.sock"
        self._families = families

    async def listen(self) -> None:
        """Begin to answer the others, in place of an earlier process with the same number."""
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._tell, self._socket)

    async def others(self) -> dict[str, list[Family]]:
        """Return the counts of the others, by the number of the process."""
        sockets = sorted(path for path in self._folder.glob("*.sock") if path != self._socket)
        answers = await asyncio.gather(*map(_ask, sockets))
        return {path.stem: answer for path, answer in zip(sockets, answers, strict=True) if answer is not None}

    async def _tell(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(msgspec.json.encode(self._families()))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _ask(path: Path) -> list[Family] | None:
    try:
        async with asyncio.timeout(PEER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return _FAMILIES.decode(await reader.read())
            finally:
                writer.close()
    except (OSError, TimeoutError, msgspec.MsgspecError):
        return None
