"""A TCP proxy that hands on answers late, to make a slow server of a quick one."""

import asyncio
import threading
from contextlib import contextmanager


class SlowProxy:
    """Where it listens, how late answers come, and what it saw."""

    def __init__(self, port):
        self._port = port
        self.delay_s = 0.0
        self.requests = 0
        self.url = ""

    async def serve(self, started, stop):
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        started.set()
        async with server:
            await stop.wait()

    async def _connected(self, reader, writer):
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._hand_on(reader, to_writer, late=False), self._hand_on(to_reader, writer, late=True))

    async def _hand_on(self, reader, writer, *, late):
        try:
            while piece := await reader.read(1 << 16):
                if late:
                    await asyncio.sleep(self.delay_s)
                else:
                    self.requests += 1
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@contextmanager
def slow_proxy(port):
    """A running proxy before a server on a port of loopback."""
    proxy, started = SlowProxy(port), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run():
        loop.run_until_complete(proxy.serve(started, stop))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
