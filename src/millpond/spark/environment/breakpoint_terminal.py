"""The terminal of a breakpoint in a Python worker: `python -m millpond.spark.environment.breakpoint_terminal SOCKET`.

It sends what is typed to the debugger that `millpond.spark.environment.remote_breakpoint` has started, and prints what
the debugger says, until the debugger closes the connection.
"""

import os
import select
import socket
import sys


def main() -> None:
    """Connect this terminal to the debugger."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(sys.argv[1])
        watched: list[int] = [there.fileno(), sys.stdin.fileno()]
        while True:
            for ready in select.select(watched, [], [])[0]:
                said = os.read(ready, 65536)
                if ready == there.fileno():
                    if not said:
                        return
                    os.write(sys.stdout.fileno(), said)
                elif said:
                    there.sendall(said)
                else:
                    watched.remove(ready)


if __name__ == "__main__":
    main()
