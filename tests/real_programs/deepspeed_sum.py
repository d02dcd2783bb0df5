"""DeepSpeed's own initialization."""
import os

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed("gloo", verbose=False)
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {total.item()}\n".encode())
# A process that exits while gloo's threads run may be aborted.
dist.destroy_process_group()
