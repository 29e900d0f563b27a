import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from millpond.cli import cli
from millpond.commands.compile import cost_of_change
from millpond.errors import OptionError
from millpond.features import (
    SERVING_INFO_DATASET,
    Aggregation,
    Field,
    GroupBy,
    ServingInfo,
    compile_group_by,
    serving_info_key,
)
from millpond.kv import Put, open_store
from tests.serving.world import FLIGHT, ROUTE

DEFINITIONS = "tests.serving.world"


def compiled(*arguments):
    result = CliRunner().invoke(cli, ["compile", DEFINITIONS, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def served(url, **changed):
    plan = compile_group_by(ROUTE)
    info = ServingInfo("route", plan.definition_hash, 0, 1, "b", "s", plan.generation, plan.batch_form)
    store = open_store(url)
    changed_info = ServingInfo(**({name: getattr(info, name) for name in info.__struct_fields__} | changed))
    store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key("route"), changed_info.encode())])
    store.close()


def test_it_shows_cells_layers_windows_bytes_and_what_can_delete():
    told = compiled()
    for part in ("GroupBy route", "ignores deletes", "1h, hop 5m: ", "tiles of 5m, ", "bytes of a key"):
        assert part in told


def test_it_shows_the_keys_and_the_names_of_the_features_of_a_join():
    told = compiled().partition(f"Join {FLIGHT.name}\n")[2]
    names = [*FLIGHT.feature_names, *(derivation.name for derivation in FLIGHT.derivations)]
    assert len(names) > len(FLIGHT.feature_names)
    assert all(part in told for part in (*names, "keys: ", "context: "))
    (joined,) = [one for one in json.loads(compiled("--json")) if one["name"] == FLIGHT.name]
    assert [one["name"] for one in joined["features"]] == names


def test_json_has_every_group_by():
    told = {one["name"]: one for one in json.loads(compiled("--json"))}
    assert told["route"]["generation"] == compile_group_by(ROUTE).generation
    assert told["route"]["bytes"]["full_batch_row"] > told["route"]["bytes"]["batch_row"]


@pytest.mark.parametrize(
    ("changed", "cost"),
    [
        ({}, "nothing: this definition is served"),
        ({"definition_hash": "00"}, "restart the fetchers"),
        ({"batch_form": "00"}, "an upload; the stream goes on"),
        ({"generation": "0badcafe"}, "a new generation"),
    ],
)
def test_against_a_store_it_says_what_a_change_costs(tmp_path, changed, cost):
    url = f"lmdb://{tmp_path}/kv"
    served(url, **changed)
    assert cost in compiled("--store", url)


def test_a_snapshot_costs_no_stream():
    snapshot = GroupBy(
        "daily", (Field("k", "string"),), (), (Aggregation("count", windows=("7d",)),), accuracy="snapshot"
    )
    plan = compile_group_by(snapshot)
    info = ServingInfo("daily", plan.definition_hash, 0, 1, "b", "s", plan.generation, plan.batch_form)
    assert cost_of_change(plan, None) == "nothing is served yet: an upload"
    assert cost_of_change(plan, replace(info, batch_form="00")) == "an upload"
    assert f"{plan.generation} after 0badcafe: an upload;" in cost_of_change(plan, replace(info, generation="0badcafe"))


def test_a_module_without_definitions_is_refused():
    with pytest.raises(OptionError, match="no GroupBy"):
        CliRunner().invoke(cli, ["compile", "json"], catch_exceptions=False)
