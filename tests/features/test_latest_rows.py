from hypothesis import given
from hypothesis import strategies as st

from millpond.features import Field, GroupBy, compile_group_by
from millpond.features.latest_rows import latest_row
from millpond.features.stored.value_header import HEADER
from millpond.features.types import parse_type
from tests.features.values import scalars

TYPES = ("long", "string", "map<string,date>", "decimal(9,2)", "double")
PLAN = compile_group_by(
    GroupBy(
        "any",
        keys=(Field("user", "string"),),
        inputs=tuple(Field(f"c{n}", type_) for n, type_ in enumerate(TYPES)),
        accuracy="snapshot",
    )
)
VALUES = st.tuples(
    *(
        st.none() | scalars(type_)
        if type_ in ("long", "string", "decimal(9,2)", "double")
        else st.dictionaries(st.sampled_from("ab"), st.none() | scalars("date"))
        for type_ in TYPES
    )
)


@given(st.lists(st.tuples(st.integers(0, 2), VALUES), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_latest_row_is_the_one_whose_stored_bytes_the_upload_keeps(rows, shuffle):
    def stored(row):
        return PLAN.encode_values(b"key", row[1], 0)[HEADER.size :]

    newest = max(time for time, _ in rows)
    kept = min(stored(row) for row in rows if row[0] == newest)
    shuffle.shuffle(rows)
    found = latest_row([parse_type(type_) for type_ in TYPES], rows)
    assert (found[0], stored(found)) == (newest, kept)
