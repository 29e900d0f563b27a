"""A process whose state outgrows its memory stays under its limit, and loses nothing."""

import json
import subprocess
import sys
import textwrap

import pytest

BURST = 5
"""Times the limit."""

PROGRAM = """
    import gc, json, sys, tempfile
    from pathlib import Path
    from millpond.state.spi import StateDescriptor, StateKind
    from millpond.state.types.object_codec import OBJECT_SCHEMA
    from millpond.state.types.serializer import msgspec_serializer
    from millpond.state.spillable import SpillableBackend, SpillableSettings
    from millpond.state.spillable.process_memory import process_memory_bytes

    size, burst = int(sys.argv[1]), int(sys.argv[2])
    limit = int(2.05 * sum(process_memory_bytes()))
    text = StateDescriptor("text", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(str))
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        settings = SpillableSettings(memory_limit_bytes=limit, chunk_bytes=64 << 20)
        backend = SpillableBackend(range(128), Path(folder), settings)
        state = backend.value_state(text)
        keys = burst * limit // (size + 150)
        for number in range(keys):
            backend.enter(number % 128)
            backend.context.key = (f"user{number * 2654435761 % 2**32}",)
            assert state.get() is None
            state.update(str(number).ljust(size, "."))
            if number % 10_000 == 0:
                backend.commit().release()
                backend.acknowledge()
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
        numbers = [int(each.rstrip(".")) for group in range(128) for each in backend.cells("text", group).values]
        assert sorted(numbers) == list(range(keys))
        print(json.dumps({"limit": limit, "peak": peak, "bytes": keys * size, "spills": backend.stats().spills}))
        backend.close()
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("size", [200, 1_000, 16_000])
def test_a_process_stays_under_its_limit_through_a_burst_of_five_times_that(size):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(size), str(BURST)],
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spills"] >= 100
    assert found["peak"] <= found["limit"], found
