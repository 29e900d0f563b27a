"""Tables in and out: the answers of their rows, in declared types."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from millpond.errors import DataError
from millpond.features import HOUR_MS, MINUTE_MS, Aggregation, Field, GroupBy, compile_group_by
from millpond.kv import MemoryStore
from millpond.serving import AnswerLog, Fetcher, FetchRequest

from .world import BATCH_END_MS, EWR, NOON_MS, PLANE, upload, upload_values


def test_a_table_is_answered_row_by_row_in_declared_types(fetcher):
    table = pa.table({"tail": ["N7", "N8"], "at": [NOON_MS, BATCH_END_MS - 1]})
    answer = fetcher.fetch_table("owner", table)
    assert answer.schema.field("since").type == pa.date32()
    assert answer.column("name").to_pylist() == ["Ann", None]
    assert answer.column("unavailable").to_pylist() == [[], ["name", "since", "seats"]]
    with pytest.raises(DataError, match="tail"):
        fetcher.fetch_table("owner", pa.table({"tial": ["N7"]}))


@pytest.mark.parametrize("name", ["route", "flight"])
def test_a_table_has_the_answers_of_its_rows(fetcher, name):
    rows = [{**PLANE, "at": NOON_MS + step * MINUTE_MS} for step in (0, 1, 1)]
    rows += [{**PLANE, "origin": origin, "at": at} for origin in ("XXX", None) for at in (NOON_MS, BATCH_END_MS - 1)]
    features = None if name == "route" else ["name", "seats", "r_count_1d", "r_count"]
    keys = EWR if name == "route" else PLANE
    table = pa.table(
        {key: pa.array([row[key] for row in rows], pa.string()) for key in keys} | {"at": [row["at"] for row in rows]}
    )
    for _ in range(2):
        before = fetcher.stats()
        found = fetcher.fetch_table(name, table, features=features)
        between = fetcher.stats()
        answers = fetcher.fetch_many(
            [
                FetchRequest(name, {key: row[key] for key in keys}, row["at"], features=features and tuple(features))
                for row in rows
            ]
        )
        after = fetcher.stats()
        for row, answer in zip(found.to_pylist(), answers, strict=True):
            wanted = features or list(answer.states | answer.features)
            assert {feature: row[feature] for feature in wanted} == {
                feature: answer.features.get(feature) for feature in wanted
            }
            assert set(row["unavailable"]) == {one for one, state in answer.states.items() if state == "unavailable"}
            assert dict(row["errors"]) == answer.errors
        for count in ("requests", "present", "null", "unavailable", "errors"):
            by_table = getattr(between, count) - getattr(before, count)
            assert by_table == getattr(after, count) - getattr(between, count), count


def test_a_sum_that_no_decimal_column_holds_is_unavailable_alone():
    paid = GroupBy(
        "paid",
        keys=(Field("user", "string"),),
        inputs=(Field("amount", "decimal(38,0)"),),
        aggregations=(Aggregation("sum", "amount", windows=("1d",)), Aggregation("count", windows=("1d",))),
    )
    plan, store, large = compile_group_by(paid), MemoryStore(), Decimal(9 * 10**37)
    few, many = [(BATCH_END_MS - HOUR_MS, (large,))], [(BATCH_END_MS - HOUR_MS, (large,))] * 2
    upload(store, plan, {("ann",): few, ("bob",): many})
    fetcher = Fetcher(store, [paid])
    assert fetcher.fetch(paid, {"user": "bob"}, BATCH_END_MS).features["amount_sum_1d"] == 2 * large
    rows = fetcher.fetch_table(paid, pa.table({"user": ["ann", "bob"]}), at=BATCH_END_MS).to_pylist()
    assert [row["amount_sum_1d"] for row in rows] == [large, None]
    assert [row["count_1d"] for row in rows] == [1, 2]
    assert [row["unavailable"] for row in rows] == [[], ["amount_sum_1d"]]
    assert "does not fit" in dict(rows[1]["errors"])["amount_sum_1d"]


def test_keys_and_features_with_the_names_of_the_tables_own_columns_get_a_prefix(tmp_path):
    health = GroupBy(
        "health",
        keys=(Field("at", "string"),),
        inputs=(Field("errors", "long"), Field("unavailable", "boolean")),
        accuracy="snapshot",
    )
    store = MemoryStore()
    upload_values(store, compile_group_by(health), {("EWR",): (5, True)})
    with Fetcher(store, [health], now=lambda: NOON_MS, answer_log=AnswerLog(tmp_path, sample=1.0)) as fetcher:
        (row,) = fetcher.fetch_table("health", pa.table({"at": ["EWR"]})).to_pylist()
    assert row == {
        "key_at": "EWR",
        "at": NOON_MS,
        "feature_errors": 5,
        "feature_unavailable": True,
        "unavailable": [],
        "errors": [],
    }
    (logged,) = pa.parquet.read_table(next(tmp_path.iterdir())).to_pylist()
    assert (logged["at"], logged["errors"], logged["feature_unavailable"]) == ("EWR", 5, True)
