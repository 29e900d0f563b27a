"""Binding the port, starting and ending: what can go wrong before the first call and after the last."""

import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest

from millpond.errors import MissingDependencyError, OptionError, UnavailableError
from millpond.serving import FetchClient, Tls, http_app, running_server, serve


def test_a_taken_port_is_named_with_a_way_out(fetcher):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"port {port} on 127.0.0.1 is taken .* port=0 takes a free one"):
            serve(http_app(fetcher), port=port)
        with pytest.raises(UnavailableError, match=f"port {port}"), running_server(http_app(fetcher), port=port):
            pass


def test_a_port_or_host_that_cannot_be_is_refused(fetcher):
    with pytest.raises(OptionError, match="port is 70000"):
        serve(http_app(fetcher), port=70_000)
    with pytest.raises(UnavailableError, match=r"cannot listen on 203\.0\.113\.7"):
        serve(http_app(fetcher), host="203.0.113.7", port=0)


def test_files_of_tls_that_cannot_be_read_are_named(fetcher, tmp_path):
    tls = Tls(tmp_path / "no.pem", tmp_path / "no.key")
    with pytest.raises(OptionError, match=r"no\.pem"), running_server(http_app(fetcher), tls=tls):
        pass


def test_a_server_that_has_ended_leaves_its_port_and_its_thread(fetcher, call):
    def servers():
        return [thread.name for thread in threading.enumerate()].count("millpond-http")

    before = servers()
    with running_server(http_app(fetcher)) as url:
        port = urlsplit(url).port
        assert call(url, "GET", "/health")[0] == 200
    with running_server(http_app(fetcher), port=port) as again:
        assert urlsplit(again).port == port
    assert servers() == before
    with FetchClient(url, retries=0) as client, pytest.raises(UnavailableError, match=f"no answer from {url}"):
        client.fetch("route", {"origin": "EWR", "carrier": "UA"})


def test_without_the_servers_package_the_error_has_the_install_line(fetcher, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[serving\]'"):
        serve(http_app(fetcher), port=0)


def test_without_httptools_a_server_answers_all_the_same(fetcher, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    with running_server(http_app(fetcher)) as url:
        body = {"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}]}
        assert call(url, "POST", "/v1/fetch/route", body)[2]["results"][0]["features"]["count_1h"] == 3
        assert call(url, "GET", "/nowhere")[0] == 404


def test_importing_the_package_imports_no_server_no_store_and_no_spark():
    heavy = {"httptools", "lmdb", "pandas", "pyarrow", "pyspark", "redis", "starlette", "uvicorn", "uvloop"}
    code = f"import sys, millpond.serving; print(sorted({heavy!r} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == "[]"
