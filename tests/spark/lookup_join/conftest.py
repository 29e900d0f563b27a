"""A table in a database."""

import sqlite3

import pytest

from millpond.lookup import SqlLookup


@pytest.fixture
def planes(tmp_path):
    path = tmp_path / "planes.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table planes (tailnum varchar(10), year integer, model text)")
        rows = [(f"N{number}", 1990 + number % 20, f"M{number}") for number in range(50)]
        connection.executemany("insert into planes values (?, ?, ?)", [*rows, ("N7", 2001, "second")])
    return SqlLookup(f"sqlite:///{path}", "planes", ["tailnum"], ["tailnum", "year", "model"])
