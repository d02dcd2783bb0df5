"""Prints the time of each call in microseconds over one backend, and the steps that DistributedDataParallel makes in a second.

    speed.py BACKEND
"""
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = {"1 kB": 1 << 10, "31 kB": 31_400, "1 MB": 1 << 20, "64 MB": 64 << 20}


def median_of(call, seconds):
    """The median time of a call, the same number of times on all ranks."""
    call()
    start = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.broadcast(once, 0)
    times = []
    for _ in range(max(3, min(300, int(seconds / max(once.item(), 1e-5))))):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def calls(size):
    """The calls of a number of bytes."""
    count, ranks = size // 4, dist.get_world_size()
    count -= count % ranks
    tensor, part, half = torch.ones(count), torch.ones(count // ranks), torch.ones(size // 2, dtype=torch.bfloat16)
    other = torch.ones(count)
    return {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_reduce bf16": lambda: dist.all_reduce(half),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(tensor, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, tensor),
        "all_to_all": lambda: dist.all_to_all_single(other, tensor),
    }


def steps_per_second(net, rows, seconds):
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs, labels = torch.randn(rows, 784), torch.randint(10, (rows,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    return 1 / median_of(step, seconds)


def main():
    # The same for all backends: mpirun with one core for each rank would otherwise differ from torchrun.
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    figures = {}
    for name, size in SIZES.items():
        for call, make in calls(size).items():
            figures[f"{call} {name}"] = median_of(make, 0.3) * 1e6
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    figures["DDP 784-10 steps/s"] = steps_per_second(nn.Linear(784, 10), 32, 1.0)
    figures["DDP 3x512 steps/s"] = steps_per_second(nn.Sequential(*layers), 256, 1.5)
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
