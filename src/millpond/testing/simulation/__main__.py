"""`python -m millpond.testing.simulation --seeds 0:200`: many worlds, one after the other.

The first seed that breaks a promise prints its trace and ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from millpond.report.words import counted
from millpond.testing.simulation import PromiseBroken, simulate
from millpond.testing.simulation.storm import STEPS


def seeds(words: str) -> range:
    """Raises ValueError, which argparse tells in its own words."""
    first, _, last = words.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def main() -> int:
    """Run the seeds that were asked for; 0 if every promise held in all of them."""
    parser = argparse.ArgumentParser(prog="python -m millpond.testing.simulation", description=simulate.__doc__)
    parser.add_argument(
        "--seeds", default="0:100", type=seeds, metavar="FROM:TO", help="seeds to run, or a single one (0:100)"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each storm ({STEPS})")
    parser.add_argument("--trace", action="store_true", help="print every step")
    given = parser.parse_args()
    happened: Counter[str] = Counter()
    for seed in given.seeds:
        try:
            run = simulate(seed, steps=given.steps, trace=given.trace)
        except PromiseBroken as broken:
            print(f"broken: {broken}", *broken.__notes__, sep="\n")
            return 1
        happened.update(run.happened)
    print(f"{counted(len(given.seeds), 'seed')}, every promise held")
    print(" · ".join(f"{what} {n:,}" for what, n in sorted(happened.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
