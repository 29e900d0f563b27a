"""Wraps a state backend with `millpond.state.spi`: the wrapper counts versions, and forwards every other call.

A wrapper can do everything that its backend can do.

    python examples/counting_backend.py
"""

from collections.abc import Iterator

from millpond.state import Context, Harness, States
from millpond.state.spi import ForwardingBackend, HeapBackend, Snapshot


class CountingBackend(ForwardingBackend):
    """Counts the versions that end in a commit."""

    commits = 0

    def commit(self) -> Snapshot:
        """Count the version, and commit it."""
        self.commits += 1
        return super().commit()


class Visits:
    """Counts the visits of each user."""

    def open(self, states: States) -> None:
        """Declare the state."""
        self.count = states.value("count", int, default=0)

    def process(self, user: str, record: str, context: Context) -> Iterator[tuple[str, int]]:
        """Count one visit."""
        self.count.update(self.count.get() + 1)
        yield user, self.count.get()


def main() -> None:
    """Count visits on the wrapped backend, and print the number of versions."""
    backends: list[CountingBackend] = []

    def backend(key_groups: range) -> CountingBackend:
        backends.append(CountingBackend(HeapBackend(key_groups)))
        return backends[-1]

    with Harness(Visits, key=lambda user: user, key_type=str, backend=backend) as harness:
        for users in (["ada", "bob"], ["ada"]):
            harness.process_many(users)
            harness.checkpoint()
        print(harness.take_output())
    print(sum(each.commits for each in backends), "versions")


if __name__ == "__main__":
    main()
