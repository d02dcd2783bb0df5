"""The calls of tests/collective/speed.rs, measured and printed alike, with gloo from PyTorch."""

import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def call(name, whole, part, received):
    if name == "all_reduce":
        dist.all_reduce(whole)
    elif name == "broadcast":
        dist.broadcast(whole, 0)
    elif name == "all_gather":
        dist.all_gather_into_tensor(whole, part)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(part, whole)
    else:
        dist.all_to_all_single(received, whole)


for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"):
    for length, times in ((8, 1000), (31_400, 500), (1 << 20, 100), (64 << 20, 7)):
        count = max(length // 4 // SIZE, 1)
        whole, part = torch.ones(count * SIZE), torch.ones(count)
        received = torch.ones(count * SIZE)
        taken = []
        warm = times // 10 + 1
        for _ in range(times + warm):
            whole.fill_(1.0)
            dist.barrier()
            begun = time.perf_counter()
            call(name, whole, part, received)
            taken.append(time.perf_counter() - begun)
        taken = torch.tensor(taken, dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if RANK == 0:
            print(f"{name} {length} {taken[warm:].sort().values[times // 2].item() * 1e6:.1f}", flush=True)

dist.destroy_process_group()
