"""Database servers for the tests of this folder: started when the first test asks, stopped at the end of the run."""

import pytest

from benchmarks import database_servers


def _started(server):
    try:
        with server() as url:
            yield url
    except database_servers.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgresql():
    yield from _started(database_servers.postgresql)


@pytest.fixture(scope="session")
def mariadb():
    yield from _started(database_servers.mariadb)


@pytest.fixture(scope="session")
def redis_url():
    yield from _started(database_servers.redis)
