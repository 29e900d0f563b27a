"""The manifest of a hop table: which files are one state of it, and what their days had.

Place on the data path: written last by each run, read first by the next.
"""

import msgspec

from millpond.errors import CorruptionError
from millpond.features.value_header import DECODE_ERRORS, checked_body, with_header

FORMAT_VERSION = 3
"""Of a manifest. Format 1 had one row for each key, and format 2 files sorted by key; such a table is built anew."""

_ADDRESS = b"hop table"


class HopDay(msgspec.Struct, frozen=True, array_like=True):
    """A day of a hop table.

    Args:
        events: how many events it had.
        checksum: of its events, whatever their order, as digits.
        hop_ms: the size of the last hop of the day.
        files: the names of its files; none if no event had a key.
    """

    events: int
    checksum: str
    hop_ms: int
    files: tuple[str, ...] = ()


class HopManifest(msgspec.Struct, frozen=True):
    """One state of a hop table.

    Args:
        version: counts the states, from 1.
        definition: the hashes of the GroupBy that the hops are of.
        end_ms: where the history ends.
        buckets: into how many the keys are divided.
        days: each day by its start.
        before: the names of the files with all time before the days.
    """

    version: int
    definition: str
    end_ms: int
    buckets: int
    days: dict[int, HopDay]
    before: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return (*self.before, *(name for day in self.days.values() for name in day.files))

    def encode(self) -> bytes:
        """Give the bytes of the manifest."""
        return with_header(FORMAT_VERSION, msgspec.json.encode(self), _ADDRESS)

    @staticmethod
    def decode(data: bytes, name: str) -> "HopManifest":
        """Give the manifest that bytes hold.

        Raises:
            CorruptionError: they are torn or altered, or of another format.
        """
        what = f"manifest {name} of a hop table"
        try:
            return msgspec.json.decode(checked_body(FORMAT_VERSION, data, what, _ADDRESS), type=HopManifest)
        except (CorruptionError, *DECODE_ERRORS) as cause:
            raise CorruptionError(
                f"{what} cannot be read: {cause}; remove the folder, and the next run builds it anew from the events"
            ) from cause
