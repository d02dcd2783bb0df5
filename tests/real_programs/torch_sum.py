"""PyTorch over gloo. With --module, the Python module of mpienv initializes it."""
import os
import sys

import torch
import torch.distributed as dist

if "--module" in sys.argv:
    import mpienv_rs

    mpienv_rs.init_process_group("gloo")
else:
    dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {total.item()}\n".encode())
dist.destroy_process_group()
