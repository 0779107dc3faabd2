"""Live worlds under many seeds: `PYTHONPATH=tests python -m support.simulation --seed 1 --worlds 500 --steps 5000`."""

from __future__ import annotations

import argparse
import sys
import time

from support.simulation.run import SimulationFailed, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--worlds", type=int, default=1, help="how many worlds, each under the next seed")
    parser.add_argument("--steps", type=int, default=5000, help="steps of each world before its faults end")
    given = parser.parse_args()
    failed = []
    for seed in range(given.seed, given.seed + given.worlds):
        began = time.process_time()
        try:
            report = simulate(seed, given.steps)
        except SimulationFailed as error:
            failed.append(seed)
            print(error, flush=True)
            continue
        took = time.process_time() - began
        print(
            f"seed {seed}: {report.steps} steps in {took:.1f} CPU s, {report.seconds:.0f} virtual s, "
            f"{report.submitted} submitted, {dict(sorted(report.ended.items()))}, {report.planes} planes, "
            f"{report.digest}; {report.weather}",
            flush=True,
        )
    if failed:
        print(f"failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
