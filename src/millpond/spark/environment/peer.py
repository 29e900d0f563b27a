"""Who is at the other end of a Unix socket.

Both ends ask before they read or send anything: a host unpickles what a worker says, and a worker what a
host says, so either would run the code of whoever took the other's place.
"""

import os
import socket
import struct

from millpond.errors import UnavailableError

_CREDENTIALS = struct.Struct("3i")


def check_peer(sock: socket.socket, peer: str) -> int | None:
    """The process at the other end of a connection, where the system can tell: refused if it is of another user.

    Args:
        sock: the connection.
        peer: what the other end should be, for the error.

    Raises:
        UnavailableError: a process of another user is there.
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
