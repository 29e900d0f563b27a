"""Where decoders that read files find them: in memory where the system has such a folder."""

from pathlib import Path

SHELF = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")  # noqa: S108 - files of this process alone
