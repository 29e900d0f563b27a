"""What the stream looks up is what was written, absences included."""

from pathlib import Path

import pyarrow as pa
import pytest

from millpond.demo.lookups import lookup_tables, write_planes, write_weather
from millpond.errors import UnavailableError

PLANES = pa.table({"tailnum": ["N1", "N2"], "year": [1999, None], "model": ["A320", "it's"], "seats": [182, 55]})
WEATHER = pa.table({"origin": ["JFK", "EWR"], "hour_ms": [0, 0], "visib": [10.0, None]})


def test_planes_and_weather_are_found_by_their_keys(tmp_path: Path) -> None:
    write_planes(tmp_path, PLANES)
    write_weather(tmp_path, WEATHER)
    with lookup_tables(tmp_path) as tables, tables["planes"].open() as planes, tables["weather"].open() as weather:
        assert planes.lookup_many([("N1",), ("N2",), ("N404",)]) == {("N1",): [(182,)], ("N2",): [(55,)], ("N404",): []}
        assert planes.lookup(("N404",)) == []
        assert weather.lookup(("JFK", 0)) == [(10.0,)]
        assert weather.lookup(("LGA", 0)) == []
        assert tables["planes"].stats().hit_count == 1


def test_a_full_disk_leaves_no_half_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(hidden: Path, _content: bytes) -> None:
        hidden.touch()
        raise OSError(28, "No space left on device", str(hidden))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnavailableError, match="disk is full"):
        write_planes(tmp_path, PLANES)
    assert list(tmp_path.iterdir()) == []
