"""A plugin of pytest for long runs: after some minutes no further test begins, and the order is drawn anew.

    python -m pytest -p tests.soak_time --begin-within 15 ...

So each run tries other tests, and all of them have their turn. `MILLPOND_TEST_SEED` repeats an order; it is printed.
"""

import os
import random
import time

import pytest

_BEGAN = time.monotonic()
_SEED = os.environ.get("MILLPOND_TEST_SEED") or str(random.SystemRandom().randrange(1 << 30))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--begin-within", type=float, required=True, metavar="MINUTES", help="when the last test may begin"
    )


def pytest_report_header() -> str:
    """Say in which order the tests run."""
    return f"order of tests: MILLPOND_TEST_SEED={_SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw the order."""
    random.Random(_SEED).shuffle(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test if the time is over."""
    if time.monotonic() - _BEGAN > 60 * item.config.getoption("--begin-within"):
        pytest.skip("the time is over")
