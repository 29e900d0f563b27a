from pathlib import Path

import pytest

from millpond.errors import CorruptionError
from millpond.features import ServingInfo, batch_dataset, serving_info_key, stream_dataset

GOLDEN = Path(__file__).parent / "golden"
INFO = ServingInfo(
    group_by="route",
    definition_hash="00c0ffee00c0ffee",
    batch_end_ms=1_388_361_600_000,
    batch_landing_ms=1_388_365_200_123,
    batch_dataset=batch_dataset("route", 1_388_361_600_000, 1_388_365_200_123),
    streaming_dataset=stream_dataset("route", "0badcafe"),
    generation="0badcafe",
    batch_form="0123456789abcdef",
    layers=(300_000, 3_600_000),
    rows=3,
    checksum=77,
)


def test_serving_info_survives_its_bytes():
    assert ServingInfo.decode(INFO.encode()) == INFO


def test_the_golden_bytes_are_still_written_and_read():
    golden = (GOLDEN / "serving_info_v2.bin").read_bytes()
    assert INFO.encode() == golden
    assert ServingInfo.decode(golden) == INFO


def test_a_record_of_format_1_is_still_read():
    former = ServingInfo.decode((GOLDEN / "serving_info_v1.bin").read_bytes())
    assert former == ServingInfo(
        INFO.group_by,
        INFO.definition_hash,
        INFO.batch_end_ms,
        INFO.batch_landing_ms,
        INFO.batch_dataset,
        "route.stream",
    )


def test_no_bit_can_be_flipped_unnoticed():
    golden = INFO.encode()
    for place in range(len(golden)):
        for bit in range(8):
            altered = bytearray(golden)
            altered[place] ^= 1 << bit
            with pytest.raises(CorruptionError):
                ServingInfo.decode(bytes(altered))


@pytest.mark.parametrize("wrong", [b"", b"\x02", b"\x03", b"\x01", INFO.encode()[:-1], b"\x01\x91\x01"])
def test_torn_or_foreign_bytes_are_refused(wrong):
    with pytest.raises(CorruptionError, match="upload the batch again"):
        ServingInfo.decode(wrong)


def test_datasets_say_whose_they_are():
    assert INFO.batch_dataset == "route.batch.1388361600000.1388365200123"
    assert INFO.streaming_dataset == "route.stream.0badcafe"
    assert serving_info_key("route") == b"route"
