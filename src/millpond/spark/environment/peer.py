"""Check which user's process is at the other end of a Unix socket.

Worker and host both check before they read or send anything. Each unpickles what the other sends, so it
would run the code of any process that took the other's place.
"""

import os
import socket
import struct

from millpond.errors import UnavailableError

_CREDENTIALS = struct.Struct("3i")


def check_peer(sock: socket.socket, peer: str) -> int | None:
    """Return the id of the process at the other end of a connection, or None where the system does not tell.

    Args:
        sock: the connection.
        peer: what the other end should be, for the error.

    Raises:
        UnavailableError: the process belongs to another user.
    """
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.getuid():
            raise UnavailableError(
                f"a process of user {uid} is where {peer} of user {os.getuid()} was expected; nothing was read from "
                "it. Find out who that is, and point TMPDIR at a folder where only this user can write."
            )
        return int(pid)
    return None
