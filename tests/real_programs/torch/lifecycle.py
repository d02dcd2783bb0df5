"""Groups in the lives of processes, over one backend: made again, in turn with others, beside workers, in new processes, in compiled
programs, under signals and after restarts. Prints what each rank gets; two backends must print the same.

    lifecycle.py BACKEND             in jobs of mpienv launch or of another launcher
    lifecycle.py BACKEND --restart   under torchrun --max-restarts 2: rank 1 fails twice
"""
import copy
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BACKEND = sys.argv[1] if len(sys.argv) > 1 else ""
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def show(name, *values):
    os.write(1, f"rank {RANK} of {SIZE}: {name}: {' '.join(str(value) for value in values)}\n".encode())


def total(rank=RANK, **options):
    numbers = torch.full((1000,), rank + 1.0)
    dist.all_reduce(numbers, **options)
    return numbers[-1].item()


def init(store, name, backend=BACKEND):
    dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=RANK, world_size=SIZE)


def left():
    """What the groups of before have left."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("mpienv")]
    return threads, len(os.listdir("/proc/self/fd"))


def place(_):
    """What mpienv says of the place, which a program may copy, hand on and write."""
    info = mpienv_rs.info()
    for copied in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
        assert copied == info and hash(copied) == hash(info), copied
    written = json.loads(json.dumps(dataclasses.asdict(info)))
    for change in (lambda: info.sources.update(rank=""), lambda: info.sources.pop("rank")):
        try:
            change()
        except TypeError:
            continue
        raise AssertionError("the place was changed")
    show("place", written["rank"], written["world_size"], len(written["sources"]) > 1)


def exports(_):
    """A process without a launcher that asks for its place while another thread exports it."""
    words = [sys.executable, "-c", EXPORTS]
    own = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    own["MPIENV_QUIET"] = "1"
    found = subprocess.run(words, env=own, check=True, stdout=subprocess.PIPE, text=True).stdout
    show("exports", found.strip())


EXPORTS = """
import mpienv_rs, os, threading, time
found, put = {mpienv_rs.info().launcher}, os.putenv
def put_slowly(*words):
    time.sleep(0.02)
    put(*words)
os.putenv = put_slowly
other = threading.Thread(target=mpienv_rs.export)
other.start()
while other.is_alive():
    try:
        found.add(mpienv_rs.info(quiet=True).launcher)
    except Exception as error:
        found.add(repr(error))
print(*found)
"""


def again(store):
    """Groups in one process, one after the other."""
    sums, descriptors = [], []
    for turn in range(5):
        init(store, f"again {turn}")
        part = dist.new_group(range(SIZE))
        sums += [total(), total(group=part)]
        if SIZE > 1:
            work = dist.isend(torch.ones(1), (RANK + 1) % SIZE)
            dist.recv(torch.ones(1), (RANK - 1) % SIZE)
            work.wait()
        dist.barrier()
        dist.destroy_process_group()
        del part
        threads, count = left()
        assert not threads, threads
        descriptors.append(count)
    assert BACKEND != "mpienv" or descriptors[1] == descriptors[-1], descriptors
    show("made again", *sums)


def in_turn(store):
    """Default groups of two backends in turn."""
    sums = []
    for turn, backend in enumerate(("gloo", BACKEND, "gloo", BACKEND)):
        init(store, f"in turn {turn}", backend)
        sums.append(total())
        dist.barrier()
        dist.destroy_process_group()
    show("in turn", *sums)


def workers(store):
    """The workers of a DataLoader, however they are started, while the group is used."""
    init(store, "workers")
    for method in ("fork", "spawn", "forkserver"):
        data = TensorDataset(torch.arange(20.0))
        sums = []
        for (numbers,) in DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=method):
            dist.all_reduce(numbers)
            sums.append(numbers.sum().item())
        show(f"workers by {method}", *sums)
    dist.destroy_process_group()


def child(rank, folder, backend, results):
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    results.put((rank, total(rank)))
    dist.barrier()
    dist.destroy_process_group()


def processes(store):
    """Ranks that a process starts, which itself has a group meanwhile unless it forks them."""
    for method in ("spawn", "fork"):
        if method == "spawn":
            init(store, f"processes {method}")
        results = multiprocessing.get_context(method).SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.start_processes(child, (folder, BACKEND, results), nprocs=2, start_method=method)
        show(f"processes by {method}", *sorted(results.get() for _ in range(2)))
        if method == "spawn":
            show("the group of their parent", total())
            dist.destroy_process_group()


def in_backward(store):
    """Gradients of DistributedDataParallel, for which ranks come at once or late, before and after other calls."""
    init(store, "backward")
    torch.manual_seed(2)
    net = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(4)))
    net = DistributedDataParallel(net, bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sums = []
    for step in range(20):
        numbers = torch.full((10,), RANK + 1.0)
        before = dist.all_reduce(numbers, async_op=True) if step % 2 else None
        loss = net(torch.full((1, 30), 0.1 * RANK + step % 3)).square().mean()
        # The ranks take turns.
        time.sleep(0.01 if step // 2 % 3 == RANK else 0)
        loss.backward()
        if before is not None:
            before.wait()
        sums += [total(RANK + step), numbers[0].item()]
        optimizer.step()
        optimizer.zero_grad()
    show("in the backward pass", sum(sums), *(f"{weight.abs().sum().item():.3f}" for weight in net.parameters()))
    dist.destroy_process_group()


def callbacks(store):
    """Callbacks of futures that make calls, and wait for these and for others."""
    init(store, "callbacks")
    sums = []

    def begun(value):
        return dist.all_reduce(torch.full((1000,), value), async_op=True).get_future()

    def at_once(future):
        dist.all_reduce(future.value()[0])
        return future.value()

    def later(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()

    for callback in (at_once, later):
        sums.append(begun(1.0).then(callback).wait()[0][-1].item())
        # Rank 0 waits for the call, and the others only for what the callback returns.
        work = dist.all_reduce(torch.ones(10), async_op=True)
        future = work.get_future().then(callback)
        if RANK == 0:
            work.wait()
        sums.append(future.wait()[0][-1].item())
    futures = [begun(number + 1.0) for number in range(20)]
    first = futures[0].then(lambda future: future.value() + futures[-1].wait())
    sums += [part[-1].item() for part in first.wait()]
    show("in callbacks", *sums)
    dist.destroy_process_group()


def compiled(store):
    """Functional collectives and DistributedDataParallel in compiled programs."""
    init(store, "compiled")
    group = dist.group.WORLD

    def calls(numbers):
        total = functional.all_reduce(numbers * 2, "sum", group)
        rows = functional.all_gather_tensor(total + 1, 0, group)
        return functional.reduce_scatter_tensor(rows, "sum", 0, group) + functional.all_reduce(numbers, "max", group)

    for compiler in ("aot_eager", "inductor"):
        torch.manual_seed(1)
        found = torch.compile(calls, backend=compiler, fullgraph=True)(torch.arange(4.0) + RANK)
        show(f"functional collectives by {compiler}", *found.tolist())
        net = DistributedDataParallel(torch.nn.Linear(8, 2))
        loss = torch.compile(net, backend=compiler)(torch.arange(8.0).view(1, 8) * (RANK + 1)).square().mean()
        loss.backward()
        gradient = net.module.weight.grad.abs().sum().item()
        show(f"DistributedDataParallel by {compiler}", f"{loss.item():.3f} {gradient:.3f}")
    dist.destroy_process_group()


def signals(store):
    """Calls while a signal comes every millisecond."""
    init(store, "signals")
    came = 0

    def note(*_):
        nonlocal came
        came += 1

    signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    sums = {total() for _ in range(2000)}
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(100)]
    for work in works:
        work.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert came > 10, came
    show("under signals", *sums)
    dist.destroy_process_group()


def restart():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group(BACKEND)
    found = total()
    if attempt < 2 and RANK == 1:
        os._exit(1)
    if attempt < 2:
        # It learns that rank 1 is lost, or torchrun ends it.
        try:
            total()
        finally:
            sys.exit(1)
    show(f"attempt {attempt}", found)
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    if "--restart" in sys.argv:
        return restart()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, SIZE, RANK == 0)
    parts = place, exports, again, in_turn, workers, processes, in_backward, callbacks, compiled
    for part in (*parts, signals):
        part(store)
    # The rank with the store ends last.
    init(store, "end", "gloo")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
