"""Kills whatever belongs to a stream, at random, and judges what came out: `make kill ROUNDS=3`.

    python -m tests.faults.killer --rounds 3 --kills 20 --seed 1

Each round is a job of keyed state (`state_round`), and one of the whole data path with lookups, tiles and fetches
(`whole_path_round`), whose store is killed too. A seed gives the same kills again.
"""

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults import state_round, whole_path_round


def main() -> None:
    """Run rounds until one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.rounds):
        for run_round in (state_round.run_round, whole_path_round.run_round):
            with tempfile.TemporaryDirectory() as folder:
                done = run_round(Path(folder), seed, given.kills)
            total.update(done.killed)
            print(f"seed {seed}: {done}", flush=True)
    print(f"{given.rounds} rounds, {sum(total.values())} processes killed: {dict(total)}")


if __name__ == "__main__":
    main()
