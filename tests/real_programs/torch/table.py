"""Runs speed.py over gloo and mpienv in alternating rounds, and prints a table of the medians.

    table.py [--ranks 2 4] [--rounds 3] [--check]    with --check, it fails where mpienv misses a goal
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BACKENDS = ("gloo", "mpienv")
# How many times as fast as gloo mpienv must be.
GOALS = {"all_reduce 31 kB": 10, "all_reduce 64 MB": 4, "DDP 784-10 steps/s": 4}


def run(ranks, backend):
    command = ["mpienv", "launch", "--nproc-per-node", str(ranks), "--", sys.executable, os.path.join(HERE, "speed.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run([*command, backend], env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    line = next(line for line in output.splitlines() if "{" in line)
    return json.loads(line[line.index("{"):])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    missed = []
    print("| ranks | call | gloo | mpienv | times as fast |")
    print("| --- | --- | --- | --- | --- |")
    for ranks in options.ranks:
        rounds = {backend: [] for backend in BACKENDS}
        for _ in range(options.rounds):
            for backend in BACKENDS:
                rounds[backend].append(run(ranks, backend))
        for name in rounds["gloo"][0]:
            gloo, own = (statistics.median(figures[name] for figures in rounds[backend]) for backend in BACKENDS)
            is_rate = name.endswith("steps/s")
            factor = own / gloo if is_rate else gloo / own
            unit = "" if is_rate else " us"
            print(f"| {ranks} | {name} | {gloo:,.0f}{unit} | {own:,.0f}{unit} | {factor:.2f} |", flush=True)
            if factor < GOALS.get(name, 1):
                missed.append(f"{name} with {ranks} ranks: {factor:.2f} times as fast, and the goal is {GOALS.get(name, 1)}")
    if options.check and missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
