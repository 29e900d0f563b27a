"""What type checkers make of `millpond.features`."""

from typing import Any, assert_type

from millpond.features import (
    Aggregation,
    BatchIr,
    Derivation,
    Field,
    GroupBy,
    GroupByPlan,
    Join,
    JoinPart,
    Tile,
    compile_group_by,
    in_window,
    parse_window,
)

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(Aggregation("average", "delay", windows=("7d",)),),
)


def a_plan_computes_features_by_name() -> None:
    plan = compile_group_by(ROUTE)
    assert_type(plan, GroupByPlan)
    batch = plan.batch_ir([(0, (1.0,))], 0)
    assert_type(batch, BatchIr)
    tile = Tile(0, 300_000, True, 0, plan.collect([0], [(1.0,)]))
    assert_type(plan.finish(0, 0, batch, [tile]), dict[str, Any])
    assert_type(plan.encode_key(["EWR"]), bytes | None)


def a_join_asks_several() -> None:
    join = Join("flight", parts=(JoinPart(ROUTE),), derivations=(Derivation("late", "route_delay_average_7d > 15"),))
    assert_type(join.parts, tuple[JoinPart, ...])


def windows_are_milliseconds() -> None:
    assert_type(parse_window("7d"), int)
    assert_type(in_window(0, 1, None), bool)


def what_is_no_field_or_aggregation_is_an_error() -> None:
    GroupBy("route", keys=("origin",), inputs=(), aggregations=())  # type: ignore[arg-type]
    Aggregation("average", "delay", windows="7d")  # type: ignore[arg-type]
