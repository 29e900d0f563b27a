"""A JSON service on loopback: what it answers is up to the test, and what it was asked is kept."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JsonServer:
    """`answers` has a status and a body by method and path; every other path is 404."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        self.answers = {}
        self.asked = []
        self.failing = []
        self.close_after_each = False
        self.respond = lambda method, path, body: self.answers.get((method, path), (404, None))


@contextmanager
def json_server():
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            world.asked.append((self.command, self.path, body, dict(self.headers)))
            status, answer = world.failing.pop(0) if world.failing else world.respond(self.command, self.path, body)
            text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            self.close_connection = world.close_after_each

        def do_POST(self):
            self.do_GET()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that does not wait for its answer
        world = JsonServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield world
        finally:
            server.shutdown()
            thread.join()
