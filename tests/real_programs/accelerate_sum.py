"""Accelerate."""
import os

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes
total = accelerator.reduce(torch.tensor([rank + 1.0]), "sum")
os.write(1, f"rank {rank} of {size}: sum {total.item()}\n".encode())
accelerator.end_training()
