"""ServingInfo: which batch of a GroupBy is served, and where its data lies.

The upload writes a whole new dataset first and this record last, so a reader of this record never
sees half a batch. The record has the batch end (where batch data stops and tiles begin) and the time the
data landed. Two runs for the same batch end may hold different data, and values cached from the
first must not answer for the second.

There is one record for each GroupBy, in the dataset ``serving_info`` under the GroupBy's name.

Format 2 has a checksum under the dataset's name and says in which forms the data is written. Format 1, which had the
definition instead, is still read.
"""

import msgspec

from millpond.errors import CorruptionError
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, with_header

SERVING_INFO_DATASET = "serving_info"

FORMAT_VERSION = 2

_ADDRESS = SERVING_INFO_DATASET.encode()


class ServingInfo(msgspec.Struct, frozen=True):
    """Which batch of a GroupBy is served.

    Args:
        group_by: the name of the GroupBy.
        definition_hash: the hash of the definition that the upload used: marks answers.
        batch_end_ms: events before it are in the batch, those from it on in the stream.
        batch_landing_ms: when the batch was written.
        batch_dataset: the KV dataset of the batch.
        streaming_dataset: the KV dataset of the tiles of one generation.
        generation: the plan's generation: marks what the stream stores. Empty in format 1.
        batch_form: the plan's batch form: marks what the upload stores. Empty in format 1.
        layers: the sizes of the stream's tiles in ms, ascending.
        accuracy: ``temporal`` or ``snapshot``.
        rows: how many keys the batch has.
        checksum: the checksum of all rows of the batch, in any order; 0 in format 1.

    >>> info = ServingInfo("route", "c0ffee", 86_400_000, 86_500_000, "route.batch.86400000.86500000", "route.stream.1")
    >>> ServingInfo.decode(info.encode()) == info
    True
    """

    group_by: str
    definition_hash: str
    batch_end_ms: int
    batch_landing_ms: int
    batch_dataset: str
    streaming_dataset: str
    generation: str = ""
    batch_form: str = ""
    layers: tuple[int, ...] = ()
    accuracy: str = "temporal"
    rows: int = 0
    checksum: int = 0

    def encode(self) -> bytes:
        """Return the bytes of this record, with their header."""
        return with_header(FORMAT_VERSION, msgspec.msgpack.encode(self), _ADDRESS)

    @classmethod
    def decode(cls, data: bytes) -> "ServingInfo":
        """Return the record that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format.
        """
        body = data[1:] if data[:1] == b"\x01" else checked_body(FORMAT_VERSION, data, "serving info", _ADDRESS)
        try:
            return msgspec.msgpack.decode(body, type=cls)
        except DECODE_ERRORS as cause:
            raise CorruptionError(f"serving info does not decode: {cause}; upload the batch again") from cause


def serving_info_key(group_by: str) -> bytes:
    """Return the key of a GroupBy's record.

    >>> serving_info_key("route")
    b'route'
    """
    return group_by.encode()
