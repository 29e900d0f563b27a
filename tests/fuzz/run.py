"""Feeds every decoder with wrong bytes, in a process of its own with a limit on its address space.

    python -m tests.fuzz.run COUNT SEED [NAME ...]

It prints one line of JSON a decoder: how many inputs there were, how many were refused, and each error that
a decoder may not raise, with the input. A process that ends early has met an input that ended it: the line
before says which decoder, and `--trace FILE` keeps the last input.
"""

import json
import resource
import sys
from pathlib import Path
from random import Random

from tests.fuzz.decoders import DECODERS
from tests.fuzz.mutations import inputs_of

ROOM_BYTES = 512 << 20
"""Far more than any input of a few kilobytes can stand for; far less than a length in it can ask for."""

MOST_SHOWN = 5


def fuzz(name: str, count: int, seed: int, trace: Path) -> dict[str, object]:
    """One decoder's part of the report."""
    fuzzed = DECODERS[name]
    fuzzed.decode(fuzzed.right)
    random, inputs, refused = Random(f"{seed} {name}"), 0, 0
    findings: list[str] = []
    given = inputs_of(random, fuzzed.right, fuzzed.with_header, fuzzed.begin, fuzzed.head, count)
    with trace.open("wb") as last:
        for data in given:
            last.seek(0)
            last.write(len(data).to_bytes(8, "big") + data)
            last.flush()
            inputs += 1
            try:
                fuzzed.decode(data)
            except fuzzed.expected:
                refused += 1
            except Exception as error:  # noqa: BLE001 - each is a finding
                if len(findings) < MOST_SHOWN:
                    findings.append(f"{type(error).__name__}: {str(error)[:200]} from {data[:200].hex()}")
    return {"decoder": name, "inputs": inputs, "refused": refused, "findings": findings}


def main() -> None:
    """Run, and report."""
    count, seed, trace, *names = sys.argv[1:]
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM_BYTES,) * 2)
    for name in names or DECODERS:
        print(json.dumps({"begins": name}), flush=True)
        print(json.dumps(fuzz(name, int(count), int(seed), Path(trace))), flush=True)


if __name__ == "__main__":
    main()
