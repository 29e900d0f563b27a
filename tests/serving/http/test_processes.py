"""Several processes on one port: killed under load, replaced, stopped, and left by their parent."""

import http.client
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from millpond.errors import UnavailableError
from millpond.serving import FetchClient
from millpond.serving.http.running.processes import Processes

PROGRAM = Path(__file__).with_name("worker_program.py")


@contextmanager
def parent_of(*arguments):
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        for worker in psutil.Process(process.pid).children() if process.poll() is None else []:
            worker.kill()
        process.kill()
        process.communicate(timeout=30)


def workers_of(parent):
    return psutil.Process(parent.pid).children()


def scraped(url):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def ask(client, wrong, refused, number):
    try:
        response = client.fetch("route", {"origin": str(number), "carrier": None})
    except UnavailableError:
        refused.append(number)
    else:
        if response.features["count_1h"] != number:
            wrong.append(number)


def test_workers_that_are_killed_under_load_are_replaced_and_no_answer_is_wrong():
    wrong, refused, answered, stop = [], [], [], threading.Event()

    def load(url, first):
        with FetchClient(url, retries=8) as client:
            number = first
            while not stop.is_set():
                ask(client, wrong, refused, number)
                answered.append(number)
                number += 4

    with parent_of("2") as parent:
        url = parent.stdout.readline().strip()
        threads = [threading.Thread(target=load, args=(url, first)) for first in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = len(answered)
            victim, *_ = workers_of(parent)
            victim.kill()
            victim.wait(30)
            # A parent that is told to stop before it has seen that a worker ended replaces none.
            while len(answered) < before + 200 or victim in workers_of(parent):
                assert parent.poll() is None
                stop.wait(0.05)
        stop.set()
        for thread in threads:
            thread.join(60)
        with FetchClient(url, retries=8) as client:
            assert client.fetch("route", {"origin": "5", "carrier": None}).features["count_1h"] == 5
        parent.send_signal(signal.SIGTERM)
        _, errors = parent.communicate(timeout=30)
    assert wrong == []
    # Who loses its connection tries again, and the other worker answers.
    assert refused == []
    assert parent.returncode == 0
    assert errors.count("a worker ended and is replaced") == 3


def test_the_counts_of_all_workers_are_in_the_answer_of_any():
    with parent_of("2") as parent:
        url = parent.stdout.readline().strip()
        clients = [FetchClient(url) for _ in range(4)]
        for number, client in enumerate(clients * 5):
            client.fetch("route", {"origin": str(number), "carrier": None})
        text = scraped(url)
    counts = re.findall(r'millpond_fetcher_requests_total\{process="(\d)"\} (\d+)', text)
    assert {process for process, _ in counts} == {"0", "1"}
    assert sum(int(count) for _, count in counts) == 20


def test_a_call_in_flight_is_answered_when_the_server_is_told_to_stop():
    body = json.dumps({"requests": [{"keys": {"origin": str(n), "carrier": None}} for n in range(900)]})
    with parent_of("1") as parent:
        url = parent.stdout.readline().strip()
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.connect()
        connection.putrequest("POST", "/v1/fetch/route")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:100].encode())
        # The answer to another call shows that the head of this one has been read.
        scraped(url)
        parent.send_signal(signal.SIGTERM)
        connection.send(body[100:].encode())
        response = connection.getresponse()
        assert (response.status, len(json.loads(response.read())["results"])) == (200, 900)
        parent.communicate(timeout=30)
    assert parent.returncode == 0


def test_workers_end_with_a_parent_that_was_killed():
    with parent_of("2") as parent:
        parent.stdout.readline()
        workers = workers_of(parent)
        assert len(workers) == 2
        os.kill(parent.pid, signal.SIGKILL)
        assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_a_worker_that_cannot_start_ends_the_parent_with_its_exit_code():
    with parent_of("2", "broken") as parent:
        _, errors = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert "a worker ended with exit code 7 before it could serve" in errors


def test_a_worker_that_the_system_has_no_room_for_is_started_later_and_the_others_go_on(caplog):
    now_ms = [0]
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        processes = Processes(["/no/such/program"], listener, 1, 100, clock=lambda: now_ms[0])
        with pytest.raises(UnavailableError, match="a worker could not be started"):
            processes._start_due("folder", selector)
        processes._has_served, processes._due_ms = True, {0: 0}
        for due_ms in (100, 300, 700):
            processes._start_due("folder", selector)
            assert processes._due_ms == {0: due_ms}
            now_ms[0] = due_ms
        assert (len(caplog.records), processes._workers, list(selector.get_map())) == (3, {}, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_parent_that_is_told_to_stop_leaves_no_worker(number):
    with parent_of("2") as parent:
        parent.stdout.readline()
        workers = workers_of(parent)
        parent.send_signal(number)
        parent.communicate(timeout=30)
    assert parent.returncode == 0
    assert not any(worker.is_running() for worker in workers)
