"""Database servers for the tests of this folder: started when the first test asks, stopped at the end of the run."""

import pytest

from benchmarks import database_servers


@pytest.fixture(scope="session")
def postgresql():
    with database_servers.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb():
    with database_servers.mariadb() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url():
    with database_servers.redis() as url:
        yield url
