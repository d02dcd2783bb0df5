"""Makes things go wrong in jobs of two ranks over gloo and over mpienv, and prints a table of what rank 0 says and when.

Over mpienv, it fails if a text does not name what is expected, if it comes late, or if a process, a file of shared memory or a
socket is left.

    faults.py [FAULT...]
"""
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

# A machine under load needs more time.
SLACK = float(os.environ.get("MPIENV_SLACK", "1"))
TIMEOUT = 4 * SLACK
HERE = os.path.dirname(os.path.abspath(__file__))
LOST = r"DistBackendError: mpienv: .*rank 1 on .* is lost"
LEFT = r"DistBackendError: mpienv: .*rank 1 called close or dropped its group"
LATE = rf"DistBackendError: mpienv: .*rank 1 on .* did not arrive within {TIMEOUT:g} s"
INTERRUPTED = r"^KeyboardInterrupt: $"
# What goes wrong, what rank 0 must say over mpienv, and within how many seconds.
FAULTS = {
    "sigkill": ("rank 1 is killed (SIGKILL)", LOST, 2),
    "sigstop": ("rank 1 is stopped (SIGSTOP)", LATE, 8),
    "hang": ("rank 1 hangs", LATE, 8),
    "length": ("rank 1 brings another number of values", r"rank 1 called all_reduce_sum of 999 f32, rank 0 all_reduce_sum of 1000 f32", 2),
    "dtype": ("rank 1 brings another type", r"rank 1 called all_reduce_sum of 1000 f64, rank 0 .* of 1000 f32", 2),
    "call": ("rank 1 makes another call", r"rank 1 called barrier, rank 0 all_reduce_sum of 1000 f32", 2),
    "destroyed_twice": ("the group is destroyed twice", r"AssertionError|ValueError", 2),
    "exception": ("rank 1 raises an exception", LEFT, 3),
    "asynchronous": ("rank 1 is killed during an asynchronous call", LOST, 3),
    "behind": ("rank 1 is killed while a call waits behind an asynchronous one", LOST, 3),
    "aborted": ("another thread aborts the group", r"DistBackendError: .*canceled", 3),
    "interrupted_training": ("Ctrl-C while all ranks train", rf"{INTERRUPTED}|{LOST}", 1),
    "interrupted": ("Ctrl-C while rank 1 hangs", INTERRUPTED, 1),
    "interrupted_work": ("SIGINT to rank 0 in `work.wait()`", INTERRUPTED, 1),
    "interrupted_behind": ("SIGINT to rank 0, whose call waits behind an asynchronous one", INTERRUPTED, 2),
    "interrupted_by_own": ("a handler raises a class of the program's", r"^Stop: enough$", 1),
    "interrupted_message": ("SIGINT to rank 0 in `recv`", INTERRUPTED, 1),
    "forked": ("a forked process makes a call", r"the forked process: .*: this process was forked from process \d+", 30),
}
# Ctrl-C in a terminal reaches all ranks.
OF_TERMINAL = ("interrupted", "interrupted_training")
# How long a rank may take to start, and to end after it has begun.
START, END = 300, 10 * TIMEOUT


class Ranks:
    """Starts ranks, and adopts them."""

    def __init__(self):
        # Linux's PR_SET_CHILD_SUBREAPER: who has no parent any more becomes a child of this process.
        if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) != 0:
            sys.exit("cannot adopt the ranks")
        command = [sys.executable, os.path.join(HERE, "fault.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def start(self, **job):
        self.process.stdin.write(f"{json.dumps(job)}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


class Rank:
    """A rank, and what it says when."""

    def __init__(self, ranks, folder, rank, **job):
        self.output, self.errors = (os.path.join(folder, f"{rank}.{name}") for name in ("out", "err"))
        self.process = ranks.start(rank=rank, files=(os.devnull, self.output, self.errors), timeout=TIMEOUT, **job)
        self.code = None

    def lines(self):
        """The lines, each with its time. Gloo of some versions prints lines of its own, without one."""
        lines = read(self.output).splitlines(keepends=True)
        words = (line.partition(" ") for line in lines if line.endswith("\n") and not line.startswith("[Gloo]"))
        return [(float(time), text.rstrip("\n")) for time, _, text in words]

    def begun(self):
        """When it has begun."""
        deadline = time.monotonic() + START
        while not self.lines():
            if self.has_ended() or time.monotonic() > deadline:
                raise RuntimeError(f"a rank did not start: {read(self.errors)}")
            time.sleep(0.01)
        return self.lines()[0][0]

    def wait_asleep(self):
        """Waits until its main thread waits, or has ended."""
        while read(f"/proc/{self.process}/stat").rpartition(")")[2].split()[0] not in "SZ":
            time.sleep(0.01)

    def has_ended(self):
        if self.code is None and os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return self.code is not None

    def ends(self, seconds):
        """Whether it ends by itself."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def run(ranks, backend, fault):
    """What rank 0 says, after how many seconds, and what is wrong."""
    shared, wrong = set(os.listdir("/dev/shm")), []
    with tempfile.TemporaryDirectory() as folder:
        job = {"backend": backend, "fault": fault, "port": free_port()}
        first = Rank(ranks, folder, 0, group=0, **job)
        second = Rank(ranks, folder, 1, group=first.process, **job)
        try:
            begun = max(rank.begun() for rank in (first, second))
            if fault.startswith("interrupted"):
                if fault != "interrupted_training":
                    first.wait_asleep()
                begun = time.monotonic()
                target = os.killpg if fault in OF_TERMINAL else os.kill
                target(first.process, signal.SIGINT)
            if not first.ends(END):
                wrong.append("rank 0 hangs")
            if fault == "sigstop":
                # It cannot end by itself.
                os.kill(second.process, signal.SIGKILL)
            if not second.ends(END):
                wrong.append("rank 1 hangs")
            if not is_over(first.process):
                wrong.append("a process is left")
        except RuntimeError as error:
            wrong.append(str(error))
        finally:
            if not is_over(first.process, 0):
                os.killpg(first.process, signal.SIGKILL)
                is_over(first.process)
        said, errors = first.lines()[1:], read(first.errors)
    wrong.extend(f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - shared if is_left(name))
    if fault != "destroyed_twice" and "left 0 sockets" not in (text for _, text in said):
        wrong.append(f"{[text for _, text in said if text.startswith('left')]}")
    if not said or said[0][1].startswith("left"):
        code = first.code or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"nothing ({'hangs' if 'rank 0 hangs' in wrong else how})", None, wrong, errors
    return said[0][1], said[0][0] - begun, wrong, errors


def free_port():
    """A port below those that the system gives to connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def is_over(group, seconds=10):
    """Whether no process of the group is left. Collects those that have ended."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


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
    ranks, failures = Ranks(), []
    print("| | mpienv | after | gloo | after |\n| --- | --- | --- | --- | --- |", flush=True)
    for fault in sys.argv[1:] or FAULTS:
        title, expected, limit = FAULTS[fault]
        text, after, wrong, errors = run(ranks, "mpienv", fault)
        if not re.search(expected, text):
            wrong.append(f"rank 0 did not say {expected}")
        if after is not None and after > limit * SLACK:
            wrong.append(f"after {after:.1f} s, and the limit is {limit} s")
        if wrong:
            failures.append(f"{fault}: {'; '.join(wrong)}\n{errors}")
        print(f"| {title} | {cell(text, after)} | {cell(*run(ranks, 'gloo', fault)[:2])} |", flush=True)
    ranks.process.stdin.close()
    ranks.process.wait()
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
