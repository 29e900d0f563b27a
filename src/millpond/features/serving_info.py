"""ServingInfo: which batch of a GroupBy is served, and where its data lies.

The upload writes a whole new dataset first and this record last, so a reader of this record never
meets half a batch. It carries the batch end (where batch data stops and tiles begin) and the time the
data landed: two runs for the same batch end may hold different data, and what was cached from the
first must not answer for the second.

There is one record for each GroupBy, in the dataset ``serving_info`` under the GroupBy's name.
"""

import msgspec

from millpond.errors import CorruptionError

SERVING_INFO_DATASET = "serving_info"

_FORMAT_VERSION = 1


class ServingInfo(msgspec.Struct, frozen=True):
    """Which batch of a GroupBy is served.

    Args:
        group_by: the name of the GroupBy.
        definition_hash: the hash of the definition under which the batch was written.
        batch_end_ms: the midnight UTC before which events are in the batch.
        batch_landing_ms: when the batch was written.
        batch_dataset: the KV dataset of the batch.
        streaming_dataset: the KV dataset of the tiles.

    >>> info = ServingInfo("route", "c0ffee", 86_400_000, 86_500_000, "route.batch.86400000.86500000", "route.stream")
    >>> ServingInfo.decode(info.encode()) == info
    True
    """

    group_by: str
    definition_hash: str
    batch_end_ms: int
    batch_landing_ms: int
    batch_dataset: str
    streaming_dataset: str

    def encode(self) -> bytes:
        """Give the bytes of this record: a format version, then MessagePack."""
        return bytes((_FORMAT_VERSION,)) + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "ServingInfo":
        """Give the record that bytes hold.

        Raises:
            CorruptionError: the bytes are not a whole record of this format.
        """
        if data[:1] != bytes((_FORMAT_VERSION,)):
            raise CorruptionError(
                f"serving info of format {data[:1].hex() or 'nothing'}, expected {_FORMAT_VERSION:02x}; "
                "upload the batch again with this version of Millpond"
            )
        try:
            return msgspec.msgpack.decode(memoryview(data)[1:], type=cls)
        except msgspec.MsgspecError as cause:
            raise CorruptionError(f"serving info does not decode: {cause}; upload the batch again") from cause


def serving_info_key(group_by: str) -> bytes:
    """Give the key of a GroupBy's record.

    >>> serving_info_key("route")
    b'route'
    """
    return group_by.encode()


def batch_dataset(group_by: str, batch_end_ms: int, landing_ms: int) -> str:
    """Give the name of the dataset of one batch.

    >>> batch_dataset("route", 86400000, 86500000)
    'route.batch.86400000.86500000'
    """
    return f"{group_by}.batch.{batch_end_ms}.{landing_ms}"


def stream_dataset(group_by: str) -> str:
    """Give the name of the dataset of the tiles.

    >>> stream_dataset("route")
    'route.stream'
    """
    return f"{group_by}.stream"
