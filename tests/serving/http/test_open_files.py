"""That a server has no more connections than files allow, and says so."""

import asyncio
import errno
import resource

import pytest

from millpond.errors import OptionError
from millpond.serving.http.running import open_files
from millpond.serving.http.running.open_files import allow_open_files, connections_allowed, report_refused_accepts


@pytest.fixture
def files(monkeypatch):
    """Sets the limits of open files; gives what the limit was raised to."""
    raised = []

    def limit(soft, hard):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
        monkeypatch.setattr(open_files, "_open_files", lambda: 20)
        return raised

    return limit


def test_where_files_suffice_there_are_as_many_connections_as_wanted(files, caplog):
    files(10_000, 10_000)
    assert connections_allowed(5_000) == 5_000
    files(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_allowed(5_000) == 5_000
    assert not caplog.records


def test_where_files_do_not_suffice_there_are_fewer_connections_and_one_line_in_the_log(files, caplog):
    files(256, 256)
    allowed = connections_allowed(5_000)
    assert 100 < allowed < 256 - 20
    (record,) = caplog.records
    assert record.fields == {"max_connections": 5_000, "allowed": allowed, "open_files_limit": 256}


def test_a_server_without_files_for_a_connection_does_not_start(files):
    files(64, 64)
    with pytest.raises(OptionError, match=r"may open 64 files, and a server needs at least 117\. .*ulimit -n"):
        connections_allowed(10)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1_024, 65_536, [(10_116, 65_536)]), (1_024, 4_096, [(4_096, 4_096)]), (20_000, 65_536, []), (4_096, 4_096, [])],
    ids=["enough", "as far as it goes", "already there", "no further"],
)
def test_the_limit_of_files_is_raised_as_far_as_it_is_needed_and_allowed(files, soft, hard, expected):
    raised = files(soft, hard)
    allow_open_files(10_000)
    assert raised == expected


def test_an_accept_that_fails_for_want_of_files_is_one_line_and_other_failures_keep_their_traceback(caplog):
    loop = asyncio.new_event_loop()
    report_refused_accepts(loop)
    loop.call_exception_handler({"message": "accept", "exception": OSError(errno.EMFILE, "too many")})
    loop.call_exception_handler({"message": "something else", "exception": ValueError("wrong")})
    loop.close()
    refused, other = caplog.records
    assert (refused.name, refused.getMessage(), refused.exc_info) == (
        "millpond.serving",
        "a connection was not accepted",
        None,
    )
    assert (other.name, other.exc_info[0]) == ("asyncio", ValueError)
