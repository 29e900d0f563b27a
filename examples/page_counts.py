"""Counts each user's pages with `millpond.state`, without Spark, and continues from a checkpoint.

    python examples/page_counts.py CHECKPOINT_FOLDER

Run it twice with the same folder: the second run continues the counts of the first.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millpond.state import Context, Harness, States

VIEWS = [
    {"user": "ada", "page": "/"},
    {"user": "bob", "page": "/"},
    {"user": "ada", "page": "/mills"},
]


class PageCounts:
    """Counts views: for each view, emits the user's views of that page so far, and of all pages."""

    def open(self, states: States) -> None:
        """Declare the states."""
        self.total = states.value("total", int, default=0)
        self.pages = states.map("pages", str, int)

    def process(self, user: str, view: dict[str, str], context: Context) -> Iterator[tuple[str, str, int, int]]:
        """Count one view."""
        page = view["page"]
        total, of_page = self.total.get() + 1, (self.pages.get(page) or 0) + 1
        self.total.update(total)
        self.pages.put(page, of_page)
        yield user, page, of_page, total


def count(folder: str, views: list[dict[str, str]]) -> list[Any]:
    """Count some views, continuing from the folder's checkpoint if it has one, and checkpoint the counts there."""
    with Harness(PageCounts, key=lambda view: view["user"], key_type=str, storage=folder) as harness:
        if any(Path(folder).glob("*")):
            harness.restore()
        harness.process_many(views)
        harness.checkpoint()
        return harness.take_output()


if __name__ == "__main__":
    for told in count(sys.argv[1], VIEWS):
        print(*told)
