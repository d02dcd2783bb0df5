"""One rank of a job in which something goes wrong. Prints the error that it gets.

    fault.py BACKEND FAULT
"""
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

TIMEOUT = 4


def say(text):
    os.write(1, f"rank {RANK}: {text}\n".encode())


def reduce(count=1000, dtype=torch.float32):
    tensor = torch.ones(count, dtype=dtype)
    dist.all_reduce(tensor)


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
        time.sleep(3 * TIMEOUT)
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
    """The other rank is lost while a call runs that nobody waits for yet."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    time.sleep(1)
    work.wait()


def aborted():
    """Another thread ends the calls."""
    import threading

    if RANK == 1:
        time.sleep(2 * TIMEOUT)
        return
    threading.Timer(0.5, lambda: dist.distributed_c10d._abort_process_group()).start()
    reduce()


def forked():
    """Workers of a DataLoader are forked, and the group is used after them."""
    data = TensorDataset(torch.arange(20))
    total = torch.zeros(())
    for (numbers,) in DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork"):
        total += numbers.sum()
        dist.all_reduce(total.clone())
    child = os.fork()
    if child == 0:
        try:
            reduce()
        except Exception as error:
            say(f"forked: {type(error).__name__}: {str(error).splitlines()[0]}")
        os._exit(0)
    os.waitpid(child, 0)
    reduce()
    say(f"sum {total.item()}")


FAULTS = {
    function.__name__: function
    for function in (
        sigkill, sigstop, hang, length, dtype, call, destroyed_twice, exception, asynchronous, aborted, forked,
    )
}


def main():
    global RANK
    backend, fault = sys.argv[1:]
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=TIMEOUT))
    RANK = dist.get_rank()
    reduce()
    start = time.monotonic()
    try:
        FAULTS[fault]()
    except BaseException as error:
        say(f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {str(error).splitlines()[0]}")
        sys.exit(1)
    say(f"no error after {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
