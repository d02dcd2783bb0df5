"""Prints how many threads PyTorch and MKL start. With --module, the Python module of mpienv initializes PyTorch over gloo."""
import sys

import torch

if "--module" in sys.argv:
    import mpienv_rs

    mpienv_rs.init_process_group("gloo")
lines = [line.strip().split(" : ") for line in torch.__config__.parallel_info().splitlines() if " : " in line]
# Not every build of PyTorch has MKL.
mkl = dict(lines).get("mkl_get_max_threads()", "no")
print(f"{torch.get_num_threads()} threads of PyTorch, {mkl} of MKL", flush=True)
