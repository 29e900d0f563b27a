"""Finding the definitions of a command in files and modules."""

import pytest

from millpond.commands.definitions import load_definitions
from millpond.errors import OptionError

ROUTE = """
from millpond.features import Aggregation, Field, GroupBy, Join, JoinPart
route = GroupBy("route", keys=(Field("origin", "string"),), aggregations=(Aggregation("count", windows=("1h",)),))
again = route
"""


@pytest.fixture
def file_of(tmp_path):
    def file_of(name, code):
        path = tmp_path / name
        path.write_text(code)
        return str(path)

    return file_of


def test_each_definition_is_found_once_and_those_of_a_join_too(file_of):
    found = load_definitions(
        [file_of("one.py", ROUTE + "flight = Join('flight', (JoinPart(route),))\ndel route, again")]
    )
    assert [group_by.name for group_by in found.group_bys] == ["route"]
    assert [join.name for join in found.joins] == ["flight"]
    assert len(load_definitions([file_of("two.py", ROUTE)]).group_bys) == 1


def test_a_module_is_found_by_its_name():
    assert {group_by.name for group_by in load_definitions(["millpond.demo.definitions"]).group_bys} >= {
        "route",
        "aircraft",
    }


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "has no GroupBy and no Join"),
        ("def", "cannot be imported"),
        ("import nowhere_to_be_found", "cannot be imported"),
    ],
)
def test_a_file_without_definitions_is_refused(file_of, code, message):
    with pytest.raises(OptionError, match=message):
        load_definitions([file_of("wrong.py", code)])
    with pytest.raises(OptionError, match="cannot be imported"):
        load_definitions(["no_such_module"])


def test_two_definitions_of_one_name_are_refused(file_of):
    other = ROUTE.replace("1h", "2h")
    with pytest.raises(OptionError, match="GroupBy 'route' is defined twice"):
        load_definitions([file_of("first.py", ROUTE), file_of("second.py", other)])


def test_the_tables_of_definitions_are_those_of_all_their_sources(file_of):
    code = """
from millpond.features import EntitySource, EventSource, Field, GroupBy, Join, JoinPart, JoinSource
def of(name, *sources):
    return GroupBy(name, (Field("k", "long"),), (Field("v", "long"),), accuracy="snapshot", sources=sources)
left = EventSource("asked", stream="asked_now")
chained = of("chained", JoinSource(Join("inner", (JoinPart(of("own_name")),), left=left)))
outer = Join("outer", (JoinPart(of("listed", EntitySource("rows", "changes", "changes_now"))),))
"""
    tables = load_definitions([file_of("tables.py", code)]).tables
    assert tables == {"asked", "asked_now", "own_name", "rows", "changes", "changes_now"}
