"""Makes things go wrong in jobs of two ranks over gloo and over mpienv, and prints what the ranks say.

Over mpienv, it fails if a rank hangs, if a text does not name what is expected, or if a process is left.

    faults.py [FAULT...]
"""
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# What rank 0 must say over mpienv, and within how many seconds.
EXPECTED = {
    "sigkill": (r"DistBackendError after .*rank 1 on .* is lost", 2),
    "sigstop": (r"DistBackendError after .*rank 1 on .* did not come within 4 s", 8),
    "hang": (r"DistBackendError after .*rank 1 on .* did not come within 4 s", 8),
    "length": (r"DistBackendError after .*rank 1 brought 999 numbers to a reduction of 1000", 2),
    "dtype": (r"DistBackendError after .*rank 1 called all_reduce_sum of 1000 f64, rank 0 all_reduce_sum of 1000 f32", 2),
    "call": (r"DistBackendError after .*rank 1 called barrier, rank 0 all_reduce_sum of 1000 f32", 2),
    "destroyed_twice": (r"AssertionError|ValueError", 2),
    "exception": (r"DistBackendError after .*rank 1 on .* is lost", 3),
    "asynchronous": (r"DistBackendError after .*rank 1 on .* is lost", 3),
    "aborted": (r"DistBackendError after .*canceled", 3),
    "forked": (r"forked: DistBackendError: mpienv: all_reduce: this process was forked from process \d+", 30),
}


def run(backend, fault):
    """The lines of the ranks, and whether all ended by themselves."""
    port = str(20000 + os.getpid() % 10000 + list(EXPECTED).index(fault))
    ranks = []
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, os.path.join(HERE, "fault.py"), backend, fault]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "start_new_session": True}
        ranks.append(subprocess.Popen(command, env={**os.environ, **variables, "OMP_NUM_THREADS": "1"}, **pipes))
    ended = True
    try:
        output = ranks[0].communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        ended, output = False, ""
    for rank in ranks:
        # A stopped rank cannot end by itself.
        if rank is ranks[0] or fault == "sigstop":
            _kill(rank)
    try:
        output += ranks[1].communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        ended = False
        _kill(ranks[1])
    left = [rank.pid for rank in ranks if _is_left(rank.pid)]
    return output, ended and not left


def _kill(rank):
    try:
        os.killpg(rank.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _is_left(group):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        time.sleep(0.1)
    return True


def main():
    failed = 0
    for fault in sys.argv[1:] or EXPECTED:
        text, limit = EXPECTED[fault]
        for backend in ("gloo", "mpienv"):
            output, ended = run(backend, fault)
            print(f"== {fault} over {backend}\n{output}", end="" if output else "(nothing)\n", flush=True)
            if backend == "gloo":
                continue
            lines = [line for line in output.splitlines() if line.startswith("rank 0") and re.search(text, line)]
            after = re.search(r"after ([0-9.]+) s", lines[0]) if lines else None
            if not ended or not lines or after and float(after[1]) > limit * float(os.environ.get("MPIENV_SLACK", "1")):
                print(f"failed: {'rank 0 did not say ' + text if ended else 'a rank hangs'}", flush=True)
                failed += 1
    print("all ok" if not failed else f"{failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
