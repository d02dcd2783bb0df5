"""The calls of tests/collective/speed.rs, measured and printed alike, over gloo from PyTorch."""

import time

import torch
import torch.distributed as dist

# As in speed.rs.
LENGTHS, WARM, BUDGET, FEWEST, MOST = (8, 31_400, 1 << 20, 64 << 20), 4, 0.25, 5, 1000

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
if RANK == 0:
    print(f"library gloo of PyTorch {torch.__version__}", flush=True)


def send_receive(whole, into):
    """Sends to the next rank and receives from the one before."""
    sent = dist.isend(whole, (RANK + 1) % SIZE)
    dist.recv(into, (RANK - 1) % SIZE)
    sent.wait()


CALLS = {
    "all_reduce": lambda whole, part, into: dist.all_reduce(whole),
    "broadcast": lambda whole, part, into: dist.broadcast(whole, 0),
    "all_gather": lambda whole, part, into: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda whole, part, into: dist.reduce_scatter_tensor(part, whole),
    "all_to_all": lambda whole, part, into: dist.all_to_all_single(into, whole),
    "send_receive": lambda whole, part, into: send_receive(whole, into),
    "barrier": lambda whole, part, into: dist.barrier(),
}


def slowest(taken):
    """The times of the slowest rank."""
    taken = torch.tensor(taken, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken


def timed(call, whole, part, into):
    whole.fill_(1.0)
    dist.barrier()
    begun = time.perf_counter()
    call(whole, part, into)
    return time.perf_counter() - begun


for name, call in CALLS.items():
    for length in [0] if name == "barrier" else LENGTHS:
        count = max(length // 4 // SIZE, 1)
        buffers = torch.ones(count * SIZE), torch.ones(count), torch.ones(count * SIZE)
        begun = time.perf_counter()
        for _ in range(WARM):
            timed(call, *buffers)
        turn = slowest([(time.perf_counter() - begun) / WARM]).item()
        times = min(max(int(BUDGET / turn), FEWEST), MOST)
        taken = slowest([timed(call, *buffers) for _ in range(times)])
        if RANK == 0:
            print(f"{name} {length} {taken.sort().values[times // 2].item() * 1e6:.2f}", flush=True)

dist.destroy_process_group()
