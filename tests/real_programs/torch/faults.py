"""Makes things go wrong in jobs of two ranks over gloo and over mpienv, and prints a table of what rank 0 says and when.

Over mpienv, it fails if a text does not name what is expected, if it comes late, or if a process, a file of shared memory or a
socket is left.

    faults.py [--jobs N] [FAULT...]    N jobs at the same time, 2 by default
"""
import argparse
import concurrent.futures
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# A machine under load needs more time.
SLACK = float(os.environ.get("MPIENV_SLACK", "1"))
TIMEOUT = 4 * SLACK
HERE = os.path.dirname(os.path.abspath(__file__))
LOST = r"DistBackendError: mpienv: .*rank 1 on .* is lost"
LATE = rf"DistBackendError: mpienv: .*rank 1 on .* did not come within {TIMEOUT:g} s"
INTERRUPTED = r"^KeyboardInterrupt: $"
# What goes wrong, what rank 0 must say over mpienv, and within how many seconds.
FAULTS = {
    "sigkill": ("rank 1 is killed (SIGKILL)", LOST, 2),
    "sigstop": ("rank 1 is stopped (SIGSTOP)", LATE, 8),
    "hang": ("rank 1 hangs", LATE, 8),
    "length": ("rank 1 brings another number of values", r"rank 1 brought 999 numbers to a reduction of 1000", 2),
    "dtype": ("rank 1 brings another type", r"rank 1 called all_reduce_sum of 1000 f64, rank 0 .* of 1000 f32", 2),
    "call": ("rank 1 makes another call", r"rank 1 called barrier, rank 0 all_reduce_sum of 1000 f32", 2),
    "destroyed_twice": ("the group is destroyed twice", r"AssertionError|ValueError", 2),
    "exception": ("rank 1 raises an exception", LOST, 3),
    "asynchronous": ("rank 1 is killed during an asynchronous call", LOST, 3),
    "aborted": ("another thread aborts the group", r"DistBackendError: .*canceled", 3),
    "interrupted_training": ("Ctrl-C while all ranks train", rf"{INTERRUPTED}|{LOST}", 1),
    "interrupted": ("Ctrl-C while rank 1 hangs", INTERRUPTED, 1),
    "interrupted_work": ("SIGINT to rank 0 in `work.wait()`", INTERRUPTED, 1),
    "interrupted_message": ("SIGINT to rank 0 in `recv`", INTERRUPTED, 1),
    "forked": ("a forked process makes a call", r"the forked process: .*: this process was forked from process \d+", 30),
}
# Ctrl-C in a terminal reaches all ranks.
OF_TERMINAL = ("interrupted", "interrupted_training")
# How long a rank may take to start, and to end after it has begun.
START, END = 300, 10 * TIMEOUT


class Rank:
    """A rank, and what it says when."""

    def __init__(self, rank, port, group, words):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TIMEOUT": str(TIMEOUT)}
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
        self.stderr = tempfile.TemporaryFile("w+")
        # In one process group, as of a job in a terminal.
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "fault.py"), *words], env=environment, stdout=subprocess.PIPE,
            stderr=self.stderr, text=True, process_group=group,
        )
        self.lines, self.is_closed = [], False
        self.heard = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.heard:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.heard.notify_all()
        with self.heard:
            self.is_closed = True
            self.heard.notify_all()

    def begun(self):
        """When it has begun."""
        with self.heard:
            self.heard.wait_for(lambda: self.lines or self.is_closed, START)
            if not self.lines:
                raise RuntimeError(self.errors())
            return self.lines[0][0]

    def wait_asleep(self):
        """Waits until its main thread waits, or has ended."""
        while True:
            with open(f"/proc/{self.process.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "SZ":
                    return
            time.sleep(0.01)

    def ends(self, seconds):
        """Whether it ends by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.reader.join(seconds)
        return True

    def errors(self):
        self.stderr.seek(0)
        return self.stderr.read()


def run(backend, fault):
    """What rank 0 says, after how many seconds, and what is wrong."""
    port, shared = free_port(), set(os.listdir("/dev/shm"))
    words = (backend, fault)
    first = Rank(0, port, 0, words)
    ranks = (first, Rank(1, port, first.process.pid, words))
    wrong = []
    try:
        begun = max(rank.begun() for rank in ranks)
        if fault.startswith("interrupted"):
            first.wait_asleep()
            begun = time.monotonic()
            target = os.killpg if fault in OF_TERMINAL else os.kill
            target(first.process.pid, signal.SIGINT)
        if not first.ends(END):
            wrong.append("rank 0 hangs")
        # A stopped rank cannot end by itself, nor does one that sleeps, which notices nothing.
        if fault == "sigstop":
            ranks[1].process.kill()
        if not ranks[1].ends(END):
            wrong.append("rank 1 hangs")
        if not is_over(first.process.pid):
            wrong.append("a process is left")
    except RuntimeError as error:
        return f"nothing ({error})", None, ["a rank did not start"], str(error)
    finally:
        try:
            os.killpg(first.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for rank in ranks:
            rank.process.wait()
    wrong.extend(f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - shared if is_left(name))
    said = first.lines[1:]
    if fault != "destroyed_twice" and "left 0 sockets" not in (text for _, text in said):
        wrong.append(f"{[text for _, text in said if text.startswith('left')]}")
    if not said or said[0][1].startswith("left"):
        code = first.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"nothing ({'hangs' if 'rank 0 hangs' in wrong else how})", None, wrong, first.errors()
    return said[0][1], said[0][0] - begun, wrong, first.errors()


def free_port():
    """A port below those that the system gives to connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
                return str(port)
            except OSError:
                continue


def is_over(group):
    """Whether no process of the group is left, except those that have ended and that this one has yet to collect."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def is_left(name):
    """Whether no process has a file of shared memory, so that it is nobody's."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/maps") as file:
                if f"/dev/shm/{name}" in file.read():
                    return False
        except OSError:
            continue
    return os.path.exists(f"/dev/shm/{name}")


def cell(text, after):
    text = re.sub(r"^(.{150}).+", r"\1 ...", text.rstrip(": ")).replace("|", "\\|")
    return f"{text} | " + ("" if after is None else f"{after:.1f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    options = parser.parse_args()
    faults, failures = options.faults or list(FAULTS), []
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    jobs = {(fault, backend): pool.submit(run, backend, fault) for fault in faults for backend in ("mpienv", "gloo")}
    print("| | mpienv | after | gloo | after |\n| --- | --- | --- | --- | --- |", flush=True)
    for fault in faults:
        title, expected, limit = FAULTS[fault]
        text, after, wrong, errors = jobs[fault, "mpienv"].result()
        if not re.search(expected, text):
            wrong.append(f"rank 0 did not say {expected}")
        if after is not None and after > limit * SLACK:
            wrong.append(f"after {after:.1f} s, and the limit is {limit} s")
        if wrong:
            failures.append(f"{fault}: {'; '.join(wrong)}\n{errors}")
        print(f"| {title} | {cell(text, after)} | {cell(*jobs[fault, 'gloo'].result()[:2])} |", flush=True)
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
