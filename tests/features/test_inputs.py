import pytest

from millpond.errors import DataError
from tests.features.test_plan import PLAN, collected


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (("1", None, None, None), ["'delay'", "double", "'1'", "str"]),
        ((True, None, None, None), ["'delay'", "bool"]),
        ((float("nan"), None, None, None), ["'delay'", "nan", "None"]),
        ((float("inf"), None, None, None), ["'delay'", "inf"]),
        ((None, 1, None, None), ["'late'", "boolean", "int"]),
        ((None, None, 1.0, None), ["'distance'", "long", "float"]),
        ((None, None, 1 << 63, None), ["'distance'", "64 bits"]),
        ((None, None, None, b"a"), ["'tail'", "string", "bytes"]),
        ((None, None, None), ["'delay', 'late', 'distance', 'tail'", "3"]),
    ],
)
def test_an_input_that_is_not_as_declared_is_refused_by_name(inputs, named):
    with pytest.raises(DataError) as refused:
        PLAN.collect([0], [inputs])
    for part in ["'route'", *named]:
        assert part in str(refused.value)


def test_whole_numbers_are_taken_for_doubles():
    assert collected((3, None, None, None)) == collected((3.0, None, None, None))


def test_none_is_dropped_and_negative_zero_becomes_zero():
    negative, zero = collected((-0.0, None, None, None)), collected((0.0, None, None, None))
    assert str(negative) == str(zero)
