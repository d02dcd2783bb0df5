"""Prints tables of how fast PyTorch's calls are over gloo and over mpienv, from one run.

    table.py [--places 2 4 hosts] [--rounds 3] [--seconds 0.2] [--check] [--write]

`hosts` are two ranks on two hosts, which need root; mpienv encrypts what they send, and gloo does not. With --check, it fails
where mpienv misses a goal; with --write, src/guide/pytorch.md gets the tables.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys

from speed import BACKENDS, SIZES

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
PAGE = TOP / "src/guide/pytorch.md"
MARKS = ("<!-- tests/real_programs/torch/table.py --write -->\n", "<!-- end -->\n")
HOSTS = TOP / "tests/hosts/two-hosts.sh"
PLACES = {"2": "2 ranks on a host", "4": "4 ranks on a host", "hosts": "2 ranks on two hosts"}
# How many times as fast as gloo mpienv must be, on one host. Everywhere else, it must not be slower.
GOALS = {"all_reduce | 31 kB": 10, "all_reduce | 64 MB": 4, "steps | 784-10, 32 images": 4}
LONGEST = 600


def measure(place, words, environment):
    """The figures that the ranks of a place print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    is_apart, size = place == "hosts", 2 if place == "hosts" else int(place)
    ranks = []
    for rank in range(size):
        host = [HOSTS, "exec", ("nodeA", "nodeB")[rank], "--"] if is_apart else []
        variables = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "10.77.0.1" if is_apart else "127.0.0.1",
            "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "eth0" if is_apart else "lo", "OMP_NUM_THREADS": "1",
        }
        command = [*host, sys.executable, HERE / "speed.py", *words]
        ranks.append(subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [rank.communicate(timeout=LONGEST)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.terminate()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        sys.exit(f"a rank failed, of {PLACES[place]}")
    return json.loads(outputs[0])


def number(value):
    """With two digits at least."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def cell(figures):
    """The times over gloo and mpienv, and their quotient."""
    gloo, own = (figures[backend] for backend in BACKENDS)
    scale, unit = (1e3, "ms") if gloo >= 1e-2 else (1e6, "us")
    return f"{number(gloo * scale)} / {number(own * scale)} {unit}, {number(gloo / own)}x"


def tables(taken):
    """The tables of all places."""
    lines = []
    for place, figures in taken.items():
        lines += [f"| {PLACES[place]}: gloo / mpienv | {' | '.join(SIZES)} |", f"|{' --- |' * (len(SIZES) + 1)}"]
        names = dict.fromkeys(name.split(" | ")[0] for name in figures if not name.startswith("steps"))
        for name in names:
            cells = (cell(figures[f"{name} | {size}"]) for size in SIZES)
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    nets = [name for name in next(iter(taken.values())) if name.startswith("steps")]
    titles = (name.split(" | ")[1] for name in nets)
    lines += [f"| steps of DistributedDataParallel in a second: gloo / mpienv | {' | '.join(titles)} |", f"|{' --- |' * (len(nets) + 1)}"]
    for place, figures in taken.items():
        rates = ([1 / figures[name][backend] for backend in BACKENDS] for name in nets)
        cells = (f"{number(gloo)} / {number(own)}, {own / gloo:.1f}x" for gloo, own in rates)
        lines.append(f"| {PLACES[place]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def missed(taken):
    """The goals that mpienv misses."""
    for place, figures in taken.items():
        for name, times in figures.items():
            factor = times["gloo"] / times["mpienv"]
            goal = 1 if place == "hosts" else GOALS.get(name, 1)
            if factor < goal:
                yield f"{PLACES[place]}, {name}: {factor:.2f} times as fast as gloo, and the goal is {goal}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=["2", "4", *(["hosts"] if os.geteuid() == 0 else [])])
    parser.add_argument("--rounds", default=os.environ.get("ROUNDS", "3"))
    parser.add_argument("--seconds", default="0.2", help="for a call and a round")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    environment = os.environ | {"TWO_HOSTS_TAG": f"mpienv-torch-{os.getpid()}", "TWO_HOSTS_SHARE": f"{TOP}:{sys.prefix}"}
    taken = {}
    if "hosts" in options.places:
        subprocess.run([HOSTS, "up", "-n", "2"], env=environment, check=True, stdout=sys.stderr)
    try:
        for place in options.places:
            taken[place] = measure(place, [options.rounds, options.seconds], environment)
    finally:
        if "hosts" in options.places:
            subprocess.run([HOSTS, "down"], env=environment, check=True, stdout=sys.stderr)
    text = tables(taken)
    print(text, end="", flush=True)
    if options.write:
        before, rest = PAGE.read_text().split(MARKS[0])
        PAGE.write_text("".join((before, MARKS[0], text, MARKS[1], rest.split(MARKS[1])[1])))
    if options.check:
        sys.exit("\n".join(missed(taken)) or 0)


if __name__ == "__main__":
    main()
