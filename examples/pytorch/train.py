"""Trains a classifier of digits on all ranks of a job with DistributedDataParallel, on GPUs if there are any.

The program does not depend on the launcher: init_process_group reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
LOCAL_RANK selects the GPU. If DATA_PATH names a folder with MNIST's two training files, plain or .gz, the digits are
MNIST's; otherwise the program draws them. With --backend mpienv, mpienv carries what the ranks exchange between CPUs.
"""

import argparse
import gc
import gzip
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def numbers(path, header):
    """What follows the header of a file, which may be compressed."""
    with open(path, "rb") if os.path.exists(path) else gzip.open(f"{path}.gz") as file:
        return np.frombuffer(bytearray(file.read()), np.uint8, offset=header)


def digits():
    folder = os.environ.get("DATA_PATH")
    if folder:
        images = numbers(f"{folder}/train-images-idx3-ubyte", 16).reshape(-1, 784)
        labels = numbers(f"{folder}/train-labels-idx1-ubyte", 8)
        return torch.from_numpy(images).float() / 255, torch.from_numpy(labels).long()
    torch.manual_seed(1)
    shapes, labels = torch.rand(10, 784), torch.randint(10, (6000,))
    return shapes[labels] + 0.3 * torch.randn(6000, 784), labels


def train(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(*digits())
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(784, 10).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for image, label in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(image.to(device)), label.to(device))
            loss.backward()
            optimizer.step()
        print(f"rank {rank} of {size}: epoch {epoch}, last loss {loss.item():.4f}", flush=True)
    weights = [torch.empty(10, 784, device=device) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    same = all(torch.equal(weights[0], other) for other in weights)
    print(f"rank {rank} of {size}: all ranks hold the same weights: {same}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", help="of torch.distributed: nccl on GPUs and gloo on CPUs by default")
    backend = parser.parse_args().backend
    if backend == "mpienv":
        # PyTorch before 2.14 does not find it without this.
        import mpienv_rs.torch
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group(backend or "nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group(backend or "gloo")
    train(device)
    # gloo's threads end with the last reference to the group, which the model has. If one is left when Python exits,
    # it may abort the process.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
