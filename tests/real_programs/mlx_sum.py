"""MLX, over its ring of TCP connections."""
import os

import mlx.core as mx

group = mx.distributed.init(backend="any")
rank, size = group.rank(), group.size()
total = mx.distributed.all_sum(mx.array([rank + 1.0]), group=group)
os.write(1, f"rank {rank} of {size}: sum {total.item()}\n".encode())
