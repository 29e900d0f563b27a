"""Descriptors travel as plain values and say what is wrong with them."""

import msgspec
import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.state.spi import StateDescriptor, StateKind

NUMBER = pa.schema([("count", pa.int64())])
PAGE = pa.schema([("page", pa.string())])


@pytest.mark.parametrize(
    "descriptor",
    [
        StateDescriptor("v", StateKind.VALUE, NUMBER),
        StateDescriptor(
            "l", StateKind.LIST, pa.schema([("at", pa.timestamp("us", tz="UTC")), ("x", pa.list_(PAGE.field(0).type))])
        ),
        StateDescriptor("m", StateKind.MAP, NUMBER, PAGE),
        StateDescriptor("n", StateKind.VALUE, pa.schema([pa.field("count", pa.int64(), nullable=False)])),
    ],
    ids=str,
)
def test_a_descriptor_survives_its_way_through_a_manifest(descriptor):
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(descriptor.encode()))
    assert StateDescriptor.decode(plain) == descriptor


def test_a_map_state_and_only_a_map_state_has_map_keys():
    with pytest.raises(OptionError, match="'m': a map state"):
        StateDescriptor("m", StateKind.MAP, NUMBER)
    with pytest.raises(OptionError, match="'v': a map state"):
        StateDescriptor("v", StateKind.VALUE, NUMBER, PAGE)


def test_a_state_without_a_name_is_refused():
    with pytest.raises(OptionError, match="not empty"):
        StateDescriptor("", StateKind.VALUE, NUMBER)


def test_describe_is_one_line_for_people():
    assert StateDescriptor("visits", StateKind.MAP, NUMBER, PAGE).describe() == (
        "map visits (page: string) -> (count: int64)"
    )
    assert StateDescriptor("total", StateKind.VALUE, NUMBER).describe() == "value total (count: int64)"
