"""Times the calls of a job over gloo and over mpienv in alternating rounds, and the steps of DistributedDataParallel.

    speed.py ROUNDS SECONDS    as started by table.py; SECONDS for a call and a round
"""
import json
import statistics
import sys
import time

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BACKENDS = ("gloo", "mpienv")
SIZES = {"1 kB": 1 << 10, "31 kB": 31_400, "1 MB": 1 << 20, "64 MB": 64 << 20}
FEWEST, MOST = 3, 300


def slowest(times, group):
    """The times of the slowest rank."""
    times = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
    return times


def median_of(call, group, seconds):
    """The median time of a call, that of the slowest rank each time."""

    def timed():
        # Or a rank would return from a call while others are still in it.
        dist.barrier(group)
        start = time.perf_counter()
        call(group)
        return time.perf_counter() - start

    timed()
    turn = slowest([timed()], group).item()
    count = max(FEWEST, min(MOST, int(seconds / turn)))
    return slowest([timed() for _ in range(count)], group).median().item()


def calls(size):
    """The calls of a number of bytes."""
    ranks = dist.get_world_size()
    part = torch.ones(size // 4 // ranks)
    whole, other = torch.ones(part.numel() * ranks), torch.ones(part.numel() * ranks)
    half = torch.ones(size // 2, dtype=torch.bfloat16)
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "all_reduce of bfloat16": lambda group: dist.all_reduce(half, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(other, part, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, other, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(other, whole, group=group),
    }


def training(layers, rows):
    """What makes a step of a net over a group."""
    inputs, labels = torch.randn(rows, 784), torch.randint(10, (rows,))
    nets = {}

    def step(group):
        if group not in nets:
            net = DistributedDataParallel(nn.Sequential(*layers()), process_group=group)
            nets[group] = net, torch.optim.SGD(net.parameters(), lr=0.01)
        net, optimizer = nets[group]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    return step


def steps():
    three = lambda: (nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return {
        "784-10, 32 images": training(lambda: (nn.Linear(784, 10),), 32),
        "784-512-512-10, 256 images": training(three, 256),
    }


def main():
    rounds, seconds = int(sys.argv[1]), float(sys.argv[2])
    # The same for all: mpirun with one core for each rank would otherwise differ from torchrun.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    figures = {}
    for size, count in SIZES.items():
        figures.update({f"{name} | {size}": measure(call, groups, rounds, seconds) for name, call in calls(count).items()})
    figures.update({f"steps | {name}": measure(step, groups, rounds, 2 * seconds) for name, step in steps().items()})
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def measure(call, groups, rounds, seconds):
    """The seconds that a call takes over each of the groups."""
    times = {backend: [] for backend in groups}
    for _ in range(rounds):
        for backend, group in groups.items():
            times[backend].append(median_of(call, group, seconds))
    return {backend: statistics.median(of_rounds) for backend, of_rounds in times.items()}


if __name__ == "__main__":
    main()
