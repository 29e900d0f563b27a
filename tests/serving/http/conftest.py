"""What the tests of the service share: a fetcher that they control, and plain HTTP to ask it with."""

import http.client
import json
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from millpond.serving import Limits, http_app, running_server

from .answering import Answering


@pytest.fixture(scope="module")
def shared():
    return Answering()


@pytest.fixture
def fetcher(shared):
    """One fetcher for all tests of a file, as new for each of them."""
    shared.__init__()
    return shared


@pytest.fixture
def serving(fetcher):
    """Starts a server of the fetcher, with what `http_app` takes; stops it at the end."""
    with ExitStack() as running:
        yield lambda **options: running.enter_context(running_server(http_app(fetcher, **options)))


@pytest.fixture(scope="module")
def shared_url(shared):
    with running_server(
        http_app(shared, limits=Limits(max_body_bytes=20_000, max_requests=50, max_features=10))
    ) as url:
        yield url


@pytest.fixture
def url(shared_url, fetcher):
    """A server with low limits, one for all tests of a file."""
    return shared_url


@pytest.fixture
def call():
    """Makes one call; gives status, headers and the body read as JSON."""

    def call(url, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        if isinstance(body, dict | list):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.headers["Content-Type"] == "application/json" and method != "HEAD":
            content = json.loads(content)
        return response.status, response.headers, content

    return call
