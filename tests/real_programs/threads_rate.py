"""Prints how many steps a second a job makes: rank 0 of `small`, `mlp` or `matmul`, after some steps to warm up.

small and mlp train with PyTorch's DistributedDataParallel over gloo, on random data of MNIST's shape; matmul multiplies
NumPy's matrices in each rank, which do not communicate.
"""
import os
import sys
import time

program, seconds = sys.argv[1], float(sys.argv[2])


def timed(step):
    """Steps a second. Rank 0's clock decides for all ranks, so that all make the same number of steps."""
    for _ in range(3):
        step()
    one = time.perf_counter()
    step()
    one = time.perf_counter() - one
    count = agreed(max(5, min(100_000, int(seconds / max(one, 1e-6)))))
    start = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - start)


if program == "matmul":
    import numpy

    a = numpy.random.rand(512, 512)

    def agreed(count):
        return count

    rate = timed(lambda: a @ a)
    rank, threads = int(os.environ["RANK"]), os.environ.get("OMP_NUM_THREADS", "-")
else:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, threads = dist.get_rank(), torch.get_num_threads()
    if program == "small":
        model, batch = nn.Linear(784, 10), 64
    else:
        hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        model, batch = nn.Sequential(*hidden, nn.Linear(512, 10)), 256
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(batch, 784), torch.randint(10, (batch,))

    def agreed(count):
        count = torch.tensor([count])
        dist.broadcast(count, 0)
        return int(count)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    rate = timed(step)
    dist.destroy_process_group()
if rank == 0:
    os.write(1, f"rate {rate} threads {threads}\n".encode())
