"""Random definitions: every operation over every type that it takes, in every shape, with windows of every hop."""

from decimal import Decimal

from hypothesis import strategies as st

from millpond.features import Aggregation, Field, GroupBy
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features import operation_oracle
from tests.features.values import SCALARS, scalars

KEYS = (Field("user", "string"), Field("shop", "long"))
BUCKETS = Field("bucket", "string")
WINDOWS = ("1m", "7m", "59m", "1h", "5h", "12h", "1d", "11d", "12d", "40d", None)
WHOLE_DAYS = ("1d", "11d", "12d", "40d", None)
SHAPES = ("{}", "{}", "{}", "array<{}>", "map<string,{}>", "map<int,{}>")
PARAMETERS = {"k": operation_oracle.K, "percentiles": operation_oracle.PERCENTILES}
MOST_AGGREGATIONS = 4


def values_of(type_):
    """Values of a type, small enough that totals of some dozens fit into a typed column."""
    parsed = parse_type(type_)
    if parsed.key is not None:
        keys = st.sampled_from("ab") if parsed.key.name == "string" else st.sampled_from((-1, 7))
        return st.dictionaries(keys, st.none() | values_of(parsed.element.name), max_size=2)
    if parsed.element is not None:
        return st.lists(st.none() | values_of(parsed.element.name), max_size=3)
    if type_ == "long":
        return st.sampled_from((-1, 0, 1)) | st.integers(-(1 << 55), 1 << 55)
    if type_ == "decimal(38,10)":
        return scalars("decimal(9,2)").map(lambda value: value.quantize(Decimal("1E-10")))
    return scalars(type_)


@st.composite
def aggregations(draw, operation, number, type_, windows):
    """One aggregation of a column, or of the events."""
    rule = OPERATIONS[operation]
    of_events = rule.of_events and draw(st.integers(0, 2)) == 0
    return Aggregation(
        operation,
        None if of_events else f"c{number}",
        tuple(draw(st.lists(st.sampled_from(windows), min_size=1, max_size=3, unique=True))),
        buckets=("bucket",) if draw(st.integers(0, 3)) == 0 else (),
        element_wise=not of_events and type_.startswith("array") and draw(st.booleans()),
        **({rule.parameter: PARAMETERS[rule.parameter]} if rule.parameter else {}),
    )


@st.composite
def group_bys(draw, windows=WINDOWS, name="any", **options):
    """A GroupBy whose columns each have a type that their operation takes."""
    columns, declared, names = [], [], set()
    for _ in range(draw(st.integers(1, MOST_AGGREGATIONS))):
        operation = draw(st.sampled_from(sorted(OPERATIONS)))
        kinds = [type_ for type_ in SCALARS if parse_type(type_).kind in OPERATIONS[operation].types]
        reused = [
            number
            for number, type_ in enumerate(columns)
            if parse_type(type_).scalar.kind in OPERATIONS[operation].types
        ]
        if reused and draw(st.booleans()):
            number = draw(st.sampled_from(reused))
        else:
            number = len(columns)
            columns.append(draw(st.sampled_from(SHAPES)).format(draw(st.sampled_from(kinds))))
        one = draw(aggregations(operation, number, columns[number], windows))
        if not names & set(one.feature_names):
            names |= set(one.feature_names)
            declared.append(one)
    return GroupBy(
        name,
        keys=KEYS,
        inputs=(*(Field(f"c{number}", type_) for number, type_ in enumerate(columns)), BUCKETS),
        aggregations=tuple(declared),
        tags={"team": draw(st.sampled_from(("", "risk")))},
        **options,
    )


def inputs_of(group_by):
    """The inputs of one event: any of them None."""
    *columns, _ = group_by.inputs
    return st.tuples(
        *(st.none() | values_of(field.type) for field in columns), st.none() | st.sampled_from(("x", "y", ""))
    )
