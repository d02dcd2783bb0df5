"""Lightning's Fabric."""
import os

import torch
from lightning.fabric import Fabric

devices = int(os.environ["LOCAL_WORLD_SIZE"])
nodes = int(os.environ["WORLD_SIZE"]) // devices
fabric = Fabric(accelerator="cpu", devices=devices, num_nodes=nodes, strategy="ddp")
fabric.launch()
total = fabric.all_reduce(torch.tensor([fabric.global_rank + 1.0]), reduce_op="sum")
os.write(1, f"rank {fabric.global_rank} of {fabric.world_size}: sum {total.item()}\n".encode())
