"""The command `millpond`, which is also `python -m millpond`."""

import sys

from millpond.errors import MissingDependencyError


def main() -> None:
    """Run the command line. If the extra that it needs is missing, name it and exit with code 2."""
    try:
        from millpond.cli import main as run
    except MissingDependencyError as error:
        sys.stderr.write(f"millpond: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
