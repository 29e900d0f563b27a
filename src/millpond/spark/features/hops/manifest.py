"""The manifest of a hop table: the files of one state of the table, and the event counts of its days.

Place on the data path: each run writes it last, and the next run reads it first.
"""

import msgspec

from millpond.errors import CorruptionError
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, with_header

FORMAT_VERSION = 4
"""The format of a manifest. Format 1 had one row for each key, and format 2 files sorted by key; tables of these
formats are built anew. Format 3 had no rollups; it is still read.
"""

_WITHOUT_ROLLUPS = 3

_ADDRESS = b"hop table"


class HopDay(msgspec.Struct, frozen=True, array_like=True):
    """A day of a hop table.

    Args:
        events: the number of its events.
        checksum: the checksum of its events, as digits; their order does not matter.
        hop_ms: the size of the last hop of the day.
        files: the names of its files; none if no event had a key.
    """

    events: int
    checksum: str
    hop_ms: int
    files: tuple[str, ...] = ()


class HopRollup(msgspec.Struct, frozen=True, array_like=True):
    """A rollup of a hop table: days merged into one hop for each key.

    Args:
        start_ms: where its days begin.
        end_ms: where they end.
        files: the names of its files; none if no event had a key.
    """

    start_ms: int
    end_ms: int
    files: tuple[str, ...] = ()


class HopManifest(msgspec.Struct, frozen=True):
    """One state of a hop table.

    Args:
        version: the number of the state, from 1.
        definition: the hashes of the GroupBy that the hops belong to.
        end_ms: the end of the history, in milliseconds UTC.
        buckets: the number of buckets that the keys are divided into.
        days: the days by their start.
        before: the names of the files with the hops of all time before the days.
        rollups: the rollups of days, beside the files of these days.
    """

    version: int
    definition: str
    end_ms: int
    buckets: int
    days: dict[int, HopDay]
    before: tuple[str, ...] = ()
    # The name that the field has in files.
    rollups: tuple[HopRollup, ...] = msgspec.field(default=(), name="blocks")

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        of_days = (name for day in self.days.values() for name in day.files)
        of_rollups = (name for rollup in self.rollups for name in rollup.files)
        return (*self.before, *of_days, *of_rollups)

    def encode(self) -> bytes:
        """Return the bytes of the manifest."""
        return with_header(FORMAT_VERSION, msgspec.json.encode(self), _ADDRESS)

    @staticmethod
    def decode(data: bytes, name: str) -> "HopManifest":
        """Return the manifest that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format.
        """
        what = f"manifest {name} of a hop table"
        try:
            version = _WITHOUT_ROLLUPS if data[:1] == bytes([_WITHOUT_ROLLUPS]) else FORMAT_VERSION
            return msgspec.json.decode(checked_body(version, data, what, _ADDRESS), type=HopManifest)
        except (CorruptionError, *DECODE_ERRORS) as cause:
            raise CorruptionError(
                f"{what} cannot be read: {cause}; remove the folder, and the next run builds it anew from the events"
            ) from cause
