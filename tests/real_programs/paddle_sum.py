"""PaddlePaddle over gloo."""
import os

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank, size = dist.get_rank(), dist.get_world_size()
total = paddle.to_tensor([rank + 1.0])
dist.all_reduce(total)
os.write(1, f"rank {rank} of {size}: sum {total.item()}\n".encode())
