"""Tables, options and answers of the tests of lookup joins."""

import os

import pyarrow as pa

from millpond.lookup import PythonLookup

PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100}

FULL = {"lookup.cache": "FULL"}


def rows_of(df):
    return sorted(map(tuple, df.collect()), key=repr)


def counting_squares(calls):
    """A function that notes the process and key of every call."""

    def square(number):
        with calls.open("a") as log:
            log.write(f"{os.getpid()} {number}\n")
        return [(number * number, -number)]

    keys = pa.schema([("number", pa.int64())])
    return PythonLookup(square, keys, pa.schema([("square", pa.int64()), ("minus", pa.int64())]))
