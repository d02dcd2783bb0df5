"""The ranks of jobs in which something goes wrong, as started by faults.py.

For each line of stdin, which describes a rank, it starts a process and prints its number. A rank says what happens to it when: a
line each, with the time. It is forked, because PyTorch takes seconds to start.
"""
import datetime
import gc
import json
import os
import signal
import sys
import threading
import time

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

# How long a rank may take to start.
START = datetime.timedelta(seconds=300)


def say(text):
    os.write(1, f"{time.monotonic()} {text}\n".encode())


def describe(error):
    lines = str(error).splitlines() or [""]
    # PyTorch puts the place in its source before gloo's text.
    return f"{type(error).__name__}: {lines[0].rpartition('] ')[2] or lines[0]}"


def reduce(count=1000, dtype=torch.float32):
    dist.all_reduce(torch.ones(count, dtype=dtype))


def sigkill():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()


def sigstop():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce()


def hang():
    if RANK == 1:
        time.sleep(2 * TIMEOUT)
    reduce()


def length():
    reduce(1000 - RANK)


def dtype():
    reduce(dtype=torch.float64 if RANK == 1 else torch.float32)


def call():
    dist.barrier() if RANK == 1 else reduce()


def destroyed_twice():
    dist.destroy_process_group()
    dist.destroy_process_group()


def exception():
    if RANK == 1:
        raise ValueError("the loss is NaN")
    reduce()


def asynchronous():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    time.sleep(1)
    work.wait()


def behind():
    if RANK == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    reduce()
    work.wait()


def aborted():
    if RANK == 1:
        time.sleep(TIMEOUT)
        return
    is_known = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
    abort = dist.distributed_c10d._abort_process_group if is_known else dist.group.WORLD.abort
    threading.Timer(0.5, abort).start()
    reduce()


def waiting(wait):
    """faults.py interrupts rank 0 while it waits for rank 1."""
    if RANK == 1:
        time.sleep(TIMEOUT)
    wait()


def interrupted():
    waiting(reduce)


def interrupted_work():
    waiting(lambda: dist.all_reduce(torch.ones(1000), async_op=True).wait())


def interrupted_behind():
    """The group has ended then: a later call says so, and closing it takes no timeout."""
    if RANK == 1:
        return time.sleep(TIMEOUT)
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    try:
        reduce()
    except KeyboardInterrupt:
        begun, texts = time.monotonic(), []
        for call in (work.wait, reduce):
            try:
                call()
            except dist.DistBackendError as error:
                texts.append(str(error))
        dist.destroy_process_group()
        after, ended = time.monotonic() - begun, "raised KeyboardInterrupt during an earlier call"
        assert len(texts) == 2 and ended in texts[1], texts
        assert after < TIMEOUT / 2, f"closed after {after:.1f} s"
        raise


class Stop(Exception):
    def __init__(self, why, number):
        super().__init__(why)


def interrupted_by_own():
    def stop(*_):
        raise Stop("enough", 1)

    signal.signal(signal.SIGINT, stop)
    interrupted_work()


def interrupted_message():
    waiting(lambda: dist.recv(torch.ones(10), 1) if RANK == 0 else dist.send(torch.ones(10), 0))


def interrupted_training():
    net = DistributedDataParallel(torch.nn.Linear(100, 10))
    while True:
        net(torch.ones(8, 100)).sum().backward()


def forked():
    """Workers of a DataLoader are forked, and the group is used after them; then a forked process uses it."""
    data = TensorDataset(torch.arange(20))
    for (numbers,) in DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork"):
        dist.all_reduce(numbers)
    child = os.fork()
    if child == 0:
        try:
            reduce()
        except Exception as error:
            say(f"the forked process: {describe(error)}")
        os._exit(0)
    os.waitpid(child, 0)
    reduce()


FAULTS = {
    function.__name__: function
    for function in (
        sigkill, sigstop, hang, length, dtype, call, destroyed_twice, exception, asynchronous, behind, aborted,
        interrupted, interrupted_work, interrupted_behind, interrupted_by_own, interrupted_message,
        interrupted_training, forked,
    )
}


def sockets():
    """The sockets of this process."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass
    return {link for link in links if link.startswith("socket:")}


def started():
    """Starts a rank for each line of stdin. Returns what describes the rank in the rank alone, which faults.py adopts."""
    for line in sys.stdin:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        # faults.py can wait for it once it has adopted it.
        while os.getppid() == between:
            time.sleep(0.001)
        print(os.getpid(), flush=True)
        return json.loads(line)
    return None


def main():
    global RANK, TIMEOUT
    job = started()
    if job is None:
        return
    # As a job in a terminal, in one process group.
    while True:
        try:
            os.setpgid(0, job["group"])
            break
        except PermissionError:
            # The first rank has not made it yet.
            time.sleep(0.01)
    for descriptor, path in enumerate(job["files"]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    RANK, TIMEOUT = job["rank"], job["timeout"]
    # A shell that runs a job in the background ignores Ctrl-C for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = sockets()
    store = dist.TCPStore("127.0.0.1", job["port"], 2, RANK == 0, START)
    timeout = datetime.timedelta(seconds=TIMEOUT)
    dist.init_process_group(job["backend"], store=store, rank=RANK, world_size=2, timeout=timeout)
    del store
    reduce()
    say("begins")
    try:
        FAULTS[job["fault"]]()
    except BaseException as error:
        say(describe(error))
        if RANK == 1:
            sys.exit(1)
    else:
        say("no error")
    try:
        dist.destroy_process_group()
    except BaseException as error:
        say(f"destroy_process_group: {describe(error)}")
    gc.collect()
    # Another thread may still close the group, or wait for the other rank to connect until the timeout.
    deadline = time.monotonic() + 2 * TIMEOUT
    while sockets() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    say(f"left {len(sockets() - before)} sockets")


if __name__ == "__main__":
    main()
