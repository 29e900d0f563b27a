"""A server that answers each connection as a script says: for what a real one does only in bad luck."""

import socket
import threading
from contextlib import contextmanager


@contextmanager
def scripted_server(*scripts):
    """Answer the first connection by the first script, and so on; a script is what to send for each call, in turn.

    None closes the connection in place of an answer. Gives the URL and the list of all calls that came.
    """
    calls = []

    def run(listener):
        for script in scripts:
            connection, _ = listener.accept()
            with connection:
                for answer in script:
                    received = connection.recv(65_536)
                    if not received:
                        break
                    calls.append(received)
                    if answer is None:
                        break
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", calls
        thread.join(10)
        assert not thread.is_alive()


def answer(body=b"", status=200, headers=""):
    return b"HTTP/1.1 %d x\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers.encode(), len(body), body)
