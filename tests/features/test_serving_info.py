from pathlib import Path

import pytest

from millpond.errors import CorruptionError
from millpond.features import ServingInfo, batch_dataset, serving_info_key, stream_dataset

GOLDEN = Path(__file__).parent / "golden" / "serving_info_v1.bin"
INFO = ServingInfo(
    group_by="route",
    definition_hash="00c0ffee00c0ffee",
    batch_end_ms=1_388_361_600_000,
    batch_landing_ms=1_388_365_200_123,
    batch_dataset=batch_dataset("route", 1_388_361_600_000, 1_388_365_200_123),
    streaming_dataset=stream_dataset("route"),
)


def test_serving_info_survives_its_bytes():
    assert ServingInfo.decode(INFO.encode()) == INFO


def test_the_golden_bytes_are_still_written_and_read():
    assert INFO.encode() == GOLDEN.read_bytes()
    assert ServingInfo.decode(GOLDEN.read_bytes()) == INFO


@pytest.mark.parametrize("wrong", [b"", b"\x02", b"\x01", INFO.encode()[:-1], b"\x01\x91\x01"])
def test_torn_or_foreign_bytes_are_refused(wrong):
    with pytest.raises(CorruptionError, match="upload the batch again"):
        ServingInfo.decode(wrong)


def test_datasets_say_whose_they_are():
    assert INFO.batch_dataset == "route.batch.1388361600000.1388365200123"
    assert INFO.streaming_dataset == "route.stream"
    assert serving_info_key("route") == b"route"
