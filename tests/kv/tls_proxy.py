"""TLS in front of a server that speaks none: the redis-server of the wheel is built without it."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tls_proxy(server_port: int, context: ssl.SSLContext) -> Iterator[int]:
    """Passes decrypted bytes on to a port of loopback; gives the port on which it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, server_port, context), daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(20)


def _accept(listener: socket.socket, server_port: int, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(connection, server_port, context), daemon=True).start()


def _pass_on(connection: socket.socket, server_port: int, context: ssl.SSLContext) -> None:
    """One request, one answer, as Redis goes; until either side ends."""
    try:
        client = context.wrap_socket(connection, server_side=True)
    except OSError:
        return
    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        server.settimeout(0.02)
        while asked := client.recv(1 << 16):
            server.sendall(asked)
            try:
                while answered := server.recv(1 << 16):
                    client.sendall(answered)
            except TimeoutError:
                continue
