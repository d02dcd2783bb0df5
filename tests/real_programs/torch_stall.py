"""PyTorch over gloo: `torch_stall.py HOW RANK`, of which one rank never enters the sum that the others are in."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
os.write(1, f"{total.item():.0f} ranks\n".encode())


def fetch():
    """Waits for data that never arrives."""
    os.read(os.pipe()[0], 1)


if dist.get_rank() == int(sys.argv[2]):
    match sys.argv[1]:
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(3000)
        case "fetch":
            fetch()
dist.all_reduce(total)
