"""What is wrong with a definition, a derivation or a value is said by name, and nothing is taken of it."""

import pytest

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, Derivation, Field, GroupBy, Join, JoinPart, compile_group_by
from millpond.features.operations import OPERATIONS
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from tests.serving.world import upload

KEYS = (Field("user", "string"),)
INPUTS = (Field("price", "double"), Field("shop", "string"), Field("n", "long"))
DAY = 86_400_000
TAKES_K = [name for name, rule in OPERATIONS.items() if rule.parameter == "k"]


def spent(*derivations, **options):
    return GroupBy("spent", KEYS, INPUTS, (Aggregation("sum", "price", ("1h",)),), derivations=derivations, **options)


@pytest.mark.parametrize("operation", TAKES_K)
@pytest.mark.parametrize("k", [0, -1, True, 2.0, "2", None, 10_001])
def test_a_k_that_is_no_count_is_refused(operation, k):
    with pytest.raises(OptionError, match=f"'{operation}' needs k, a whole number from 1 to 10000, got {k!r}"):
        Aggregation(operation, "price", k=k)


@pytest.mark.parametrize("window", ["30s", "59s", "0m", "0.5m", "-1m", "1", "m", "", "1 m", "inf", 60_000])
def test_a_window_that_is_no_whole_number_of_minutes_is_refused(window):
    with pytest.raises(OptionError, match=r"'price_sum'.*followed by m, h or d"):
        Aggregation("sum", "price", (window,))


@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        ("n", "GroupBy 'spent': bucket 'n' must be of type string, its type is 'long'; cast it"),
        ("shops", "bucket 'shops' is not among its inputs; did you mean 'shop'"),
    ],
)
def test_a_bucket_that_is_no_text_is_refused(bucket, said):
    with pytest.raises(OptionError, match=said):
        GroupBy("spent", KEYS, INPUTS, (Aggregation("sum", "price", buckets=(bucket,)),))


@pytest.mark.parametrize("window", ["1m", "36h", "25h"])
def test_a_window_of_a_snapshot_that_is_no_whole_number_of_days_is_refused(window):
    with pytest.raises(OptionError, match=f"window '{window}' of a snapshot is no whole number of days"):
        GroupBy("spent", KEYS, INPUTS, (Aggregation("sum", "price", (window,)),), accuracy="snapshot")


def test_a_window_longer_than_the_history_holds_all_of_it():
    plan = compile_group_by(GroupBy("spent", KEYS, INPUTS, (Aggregation("sum", "price", ("999999d", None)),)))
    batch = plan.batch_ir([(0, (1.5, None, None)), (DAY - 1, (2.0, None, None))], DAY)
    assert plan.finish(DAY, DAY, batch, []) == {"price_sum_999999d": 3.5, "price_sum": 3.5}


@pytest.mark.parametrize(
    ("derivations", "said"),
    [
        ([Derivation("d", "price_sum_2h + 1")], "'d'.*no column 'price_sum_2h'; did you mean 'price_sum_1h'"),
        ([Derivation("d", "1"), Derivation("d", "2")], "'d'.*name is taken"),
        ([Derivation("price_sum_1h", "1")], "'price_sum_1h'.*name is taken"),
        ([Derivation("a", "b"), Derivation("b", "a")], "cycle: a -> b -> a"),
        ([Derivation("d", "upper(price_sum_1h)")], "'d'.*UPPER.*expected string, got double"),
    ],
)
def test_a_derivation_that_does_not_fit_is_refused_where_the_definition_is_made(derivations, said):
    with pytest.raises(OptionError, match=said):
        spent(*derivations)


def test_a_derivation_of_a_join_that_names_something_unknown_is_refused():
    part = JoinPart(spent(Derivation("twice", "2 * price_sum_1h")))
    derivations = (Derivation("d", "nope + 1"), Derivation("e", "upper(spent_twice)"), Derivation("f", "amount + 1"))
    with pytest.raises(OptionError) as refused:
        Join("j", (part,), derivations=derivations, context=(Field("amount", "double"),))
    for said in ("Join 'j' has 2 faults", "'d'", "no column 'nope'", "'e'", "expected string, got double"):
        assert said in str(refused.value)


def test_faults_of_derivations_are_told_with_all_others_and_none_follows_from_another():
    with pytest.raises(OptionError) as refused:
        GroupBy(
            "spent",
            KEYS,
            INPUTS,
            (Aggregation("sum", "prize", ("1h",)), Aggregation("count")),
            derivations=(Derivation("a", "prize_sum_1h + 1"), Derivation("b", "upper(count)")),
        )
    for said in ("'spent' has 2 faults", "column 'prize'", "derivation 'b'", "expected string, got long"):
        assert said in str(refused.value)


def test_a_derivation_that_divides_by_zero_is_null_for_itself_with_the_reason():
    group_by = spent(Derivation("share", "1 / (price_sum_1h - price_sum_1h)"), Derivation("double", "2 * price_sum_1h"))
    store = MemoryStore()
    upload(store, compile_group_by(group_by), {("a",): [(DAY - 1, (1.5, None, None))]}, DAY)
    answer = Fetcher(store, [group_by]).fetch("spent", {"user": "a"}, DAY)
    assert answer.features == {"price_sum_1h": 1.5, "share": None, "double": 3.0}
    assert "division by zero" in answer.errors["share"]


def test_two_definitions_of_one_name_are_not_served_together():
    other = GroupBy("spent", KEYS, INPUTS, (Aggregation("count"),))
    with pytest.raises(OptionError, match="two definitions are named 'spent'"):
        Fetcher(MemoryStore(), [spent(), other])


@pytest.mark.parametrize("time", [None, float("nan"), float("inf"), 1.5, "1", True])
def test_a_time_that_is_no_number_of_milliseconds_is_refused(time):
    plan = compile_group_by(spent())
    for collect in (
        lambda event: plan.collect([time, 1], [event, event]),
        lambda event: plan.batch_ir([(1, event), (time, event)], DAY),
    ):
        with pytest.raises(DataError, match=r"'spent'.*time of an event.*whole number of milliseconds"):
            collect((1.0, None, None))


@pytest.mark.parametrize("value", ["1", "", float("nan"), float("inf"), float("-inf"), True, [1.0], 10**400, 1j])
def test_a_value_that_is_not_of_its_columns_type_is_refused_by_name(value):
    with pytest.raises(DataError, match=r"'spent'.*input 'price' must be of type double or None"):
        compile_group_by(spent()).collect([1], [(value, None, None)])


@pytest.mark.parametrize("key", [(1,), (b"a",), (1.5,), ("a", "b"), (), {"users": "a"}, ("\ud800",)])
def test_a_key_of_the_wrong_type_or_width_is_refused_by_name(key):
    with pytest.raises(DataError, match=r"'spent'.*'user'"):
        compile_group_by(spent()).encode_key(key)


def test_a_group_by_that_is_twice_in_a_join_is_told_how_its_parts_are_told_apart():
    with pytest.raises(
        OptionError, match=r"'spent_price_sum_1h' is declared twice; .*JoinPart\(\.\.\., prefix=\.\.\.\)"
    ):
        Join("j", (JoinPart(spent()), JoinPart(spent(), key_mapping={"payer": "user"})))
    with pytest.raises(OptionError, match="feature 'spent_price_sum_1h' is declared twice; drop or rename one"):
        Join("j", (JoinPart(spent()),), context=(Field("spent_price_sum_1h", "double"),))


def test_a_key_mapping_that_is_reversed_is_told_so():
    with pytest.raises(OptionError, match=r"to a key of the GroupBy: write {'payer': 'user'}"):
        JoinPart(spent(), key_mapping={"user": "payer"})
    with pytest.raises(OptionError, match="did you mean 'user'"):
        JoinPart(spent(), key_mapping={"payer": "usr"})
