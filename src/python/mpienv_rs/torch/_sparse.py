"""Sums of sparse tensors, such as the gradients of an embedding: the ranks exchange what each has, and all add it in one order."""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from torch._C._distributed_c10d import ReduceOp

# Brings a tensor of every rank into a list of tensors, one for each rank.
Gather = Callable[[Any, List[Any]], None]


def check(operation: str, tensors: List[Any], number: int) -> None:
    """Fails unless these are tensors that `add` can add."""
    name = str(ReduceOp.RedOpType(number)).rpartition(".")[2]
    if number != int(ReduceOp.SUM) or any(tensor.layout is not torch.sparse_coo for tensor in tensors):
        raise RuntimeError(
            f"mpienv: {operation} adds tensors of the layout sparse_coo, and does not reduce {tensors[0].layout} by {name}; "
            "use to_dense()"
        )


def add(tensor: Any, ranks: int, gather: Gather) -> None:
    """Replaces a tensor with the sum over all ranks."""
    part = tensor.detach().coalesce()
    indices, values = part.indices().contiguous(), part.values().contiguous()
    # The ranks have as many numbers and dimensions.
    own = torch.tensor([values.size(0), tensor.sparse_dim(), *tensor.shape], device="cpu")
    rows = [torch.zeros_like(own) for _ in range(ranks)]
    gather(own, rows)
    for rank, row in enumerate(rows):
        if row[1:].tolist() != own[1:].tolist():
            raise RuntimeError(
                f"mpienv: all_reduce: rank {rank} called all_reduce of a sparse tensor of shape {tuple(row[2:].tolist())} with "
                f"{int(row[1])} sparse dimensions, this rank of {tuple(own[2:].tolist())} with {int(own[1])}: all ranks must "
                "make the same calls"
            )
    counts = [row[0] for row in rows]
    all_indices = [indices.new_empty((indices.size(0), int(count))) for count in counts]
    all_values = [values.new_empty((int(count), *values.shape[1:])) for count in counts]
    gather(indices, all_indices)
    gather(values, all_values)
    columns = torch.cat(all_indices, 1)
    total = torch.sparse_coo_tensor(
        columns, torch.cat(all_values), tensor.shape, device="cpu", check_invariants=False
    )
    # A detached sparse tensor would keep the sum to itself.
    with torch.no_grad():
        tensor.copy_(total.coalesce())
