"""The manifest of a hop table: its bytes, the formats that are read, and altered ones."""

import random
from pathlib import Path

import msgspec
import pytest

from millpond.errors import CorruptionError
from millpond.features import DAY_MS, HOUR_MS
from millpond.spark.features.hops.manifest import HopDay, HopManifest, HopRollup
from millpond.spark.features.hops.table import HopTable
from tests.spark.features.hop_uploads import PLAN, B, altered, drawn

GOLDEN = Path(__file__).parents[2] / "features" / "golden"
WITHOUT_ROLLUPS = HopManifest(
    3,
    "0123.4567",
    B,
    2,
    {B - DAY_MS: HopDay(5, "123", HOUR_MS, (f"hops-00000003-00001-{B - DAY_MS}-{'0' * 32}.parquet",))},
    (f"hops-00000003-00000-before-{'0' * 32}.parquet",),
)
ROLLUP = HopRollup(B - DAY_MS, B, (f"block-00000003-00001-{B - DAY_MS}-{'0' * 32}.parquet",))
MANIFEST = msgspec.structs.replace(WITHOUT_ROLLUPS, rollups=(ROLLUP,))


def test_the_current_version_still_writes_its_golden_bytes():
    assert MANIFEST.encode() == (GOLDEN / "hop_manifest_v4.bin").read_bytes()


def test_a_manifest_of_the_format_without_rollups_is_read():
    assert HopManifest.decode((GOLDEN / "hop_manifest_v3.bin").read_bytes(), "m") == WITHOUT_ROLLUPS


@pytest.mark.spark
@pytest.mark.parametrize("version", [1, 2])
def test_a_table_of_an_earlier_format_is_built_anew(uploads, version):
    uploads.folder.mkdir()
    (uploads.folder / "manifest-00000004").write_bytes((GOLDEN / f"hop_manifest_v{version}.bin").read_bytes())
    rows = drawn(random.Random(10), 50, B - 9 * DAY_MS, B)
    assert uploads.check(rows, B) == len(rows)
    assert HopTable(PLAN, uploads.folder).state().version == 5


def test_a_manifest_is_read_back_and_an_altered_one_refused():
    stored = MANIFEST.encode()
    assert HopManifest.decode(stored, "m") == MANIFEST
    for place in range(len(stored)):
        with pytest.raises(CorruptionError, match="manifest m"):
            HopManifest.decode(altered(stored, place), "m")
