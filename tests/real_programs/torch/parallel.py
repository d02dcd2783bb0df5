"""Trains in the ways that PyTorch has, over one backend, and prints what each gives. Two backends must print the same.

    parallel.py BACKEND FOLDER    the checkpoint goes into FOLDER
"""
import os
import sys

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:
    # PyTorch 2.4.
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
# Before, FSDP2 needs GPUs.
HAS_FSDP2 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
if HAS_FSDP2:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def show(name, *numbers):
    rank = dist.get_rank()
    text = " ".join(f"{float(number.detach() if torch.is_tensor(number) else number):.4f}" for number in numbers)
    os.write(1, f"rank {rank}: {name}: {text}\n".encode())


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 36), nn.ReLU(), nn.Linear(36, 4))


def batch(step, rows=8):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 16, generator=generator), torch.randint(4, (rows,), generator=generator)


def train(net, steps=5, accumulate=1):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            inputs, labels = batch(step * accumulate + part)
            loss = nn.functional.cross_entropy(net(inputs), labels)
            if part + 1 < accumulate:
                with net.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Branches(nn.Module):
    """Half of it takes part in each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)])
        self.step = 0

    def forward(self, inputs):
        self.step += 1
        return self.branches[self.step % 2](inputs)


class Words(nn.Module):
    """The gradient of its table has a row for each word that takes part in a step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(50, 4, sparse=True)

    def forward(self, inputs):
        return self.table((inputs.abs() * 100).long() % 50).sum(1)


def replicas():
    show("DDP", *train(DistributedDataParallel(model())))
    show("DDP that accumulates gradients", *train(DistributedDataParallel(model()), accumulate=3))
    show("DDP with unused parameters", *train(DistributedDataParallel(Branches(), find_unused_parameters=True)))
    show("DDP with sparse gradients", *train(DistributedDataParallel(Words())))
    buckets = DistributedDataParallel(model(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    show("DDP with many buckets", *train(buckets))
    net = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    # Its callbacks make calls.
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    show("DDP with PowerSGD", *train(net, steps=6))
    net = DistributedDataParallel(model())
    # The ranks have different numbers of batches.
    with net.join():
        show("DDP with join", *train(net, steps=3 + dist.get_rank()))
    weights = torch.cat([weight.detach().flatten() for weight in net.parameters()])
    show("weights", weights.sum(), weights.abs().sum())


def shards():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, kind in (("FSDP2", {}), ("FSDP2 with bf16", {"mp_policy": policy})):
        net = model()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh, **kind)
        fully_shard(net, mesh=mesh, **kind)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        losses = []
        for step in range(5):
            inputs, labels = batch(step)
            loss = nn.functional.cross_entropy(net(inputs).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        show(name, *losses)
    return net


def tensors():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(3)
    whole = torch.randn(8, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = (rows @ columns).redistribute(mesh, [Replicate()])
    show("DTensor", product.to_local().sum(), columns.to_local().sum(), rows.full_tensor().sum())
    net = model()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(4)
    output = net(torch.randn(6, 16))
    output.sum().backward()
    show("tensor parallel", output.sum(), net[0].weight.grad.full_tensor().sum())


def checkpoints(net, folder):
    state = {"net": net.state_dict(), "step": torch.tensor(7)}
    checkpoint.save(state, checkpoint_id=folder)
    expected = [value.full_tensor().clone() for value in state["net"].values()]
    for value in state["net"].values():
        value.to_local().zero_()
    state["step"].zero_()
    checkpoint.load(state, checkpoint_id=folder)
    for value, before in zip(state["net"].values(), expected):
        assert torch.equal(value.full_tensor(), before)
    show("checkpoint", state["step"], sum(value.sum() for value in expected))


def main():
    backend, folder = sys.argv[1:]
    dist.init_process_group(backend)
    replicas()
    tensors()
    if HAS_FSDP2:
        checkpoints(shards(), folder)
    # Or gloo of PyTorch 2.4 may wait for a rank that has ended.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
