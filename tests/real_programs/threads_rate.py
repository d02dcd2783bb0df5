"""A rank of `small`, `mlp` or `matmul`, which makes as many steps as a socket asks for, and answers with the seconds they took.

small and mlp train with PyTorch's DistributedDataParallel over gloo, on random data of MNIST's shape; matmul multiplies
NumPy's matrices in each rank, which do not communicate.
"""
import os
import socket
import sys
import time

program, address = sys.argv[1:]

if program == "matmul":
    import numpy

    threads = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
    a = numpy.random.rand(512, 512)

    def step():
        return a @ a
else:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    threads = torch.get_num_threads()
    if program == "small":
        model, batch = nn.Linear(784, 10), 64
    else:
        hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        model, batch = nn.Sequential(*hidden, nn.Linear(512, 10)), 256
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(batch, 784), torch.randint(10, (batch,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

for _ in range(3):
    step()
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(address)
    lines = connection.makefile("rw")
    print(threads, file=lines, flush=True)
    for line in lines:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - start, file=lines, flush=True)
if program != "matmul":
    dist.destroy_process_group()
