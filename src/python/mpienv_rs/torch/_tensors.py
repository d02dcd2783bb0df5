"""Tensors as the library sees them: an address, a count and a type."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ._library import Buffers, kind_of

# The types that the library reduces, by their names in Rust.
_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
}
KINDS: Dict[Any, int] = {dtype: kind_of(name) for dtype, name in _NAMES.items()}
_BYTES = KINDS[torch.uint8]
# The name in Rust of each kind, and how many bytes a number has.
SIZES = {KINDS[dtype]: (name, dtype.itemsize) for dtype, name in _NAMES.items()}

# What to add to the kind of the numbers that travel, if they are those of another type, which ranks compare too.
_MEANT = (
    "int16", "uint16", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "qint8", "quint8", "qint32",
)
MEANT = {getattr(torch, name): kind_of(name) for name in _MEANT if hasattr(torch, name)}
_OTHER = kind_of("bytes of another type")

# Types that are reduced as a wider one, and rounded or wrapped around afterwards.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32}


def check(operation: str, tensor: Any, is_result: bool = False) -> None:
    """Fails unless the library can read a tensor and, if it takes a result, write it."""
    if tensor.layout is not torch.strided:
        raise RuntimeError(
            f"mpienv: {operation} does not take sparse tensors; use to_dense(), or the backend gloo for this group"
        )
    if tensor.device.type != "cpu":
        raise RuntimeError(
            f"mpienv: {operation} takes tensors on cpu, and this one is on {tensor.device}; use another group for it, or, from "
            'PyTorch 2.14 on, initialize with "cpu:mpienv,cuda:nccl"'
        )
    if is_result and any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
        raise RuntimeError(
            f"mpienv: {operation} cannot write to a tensor whose numbers share memory, as after expand(); use clone()"
        )


def moved_kind(tensor: Any) -> int:
    """The type of the numbers of a tensor that are moved as they are."""
    return KINDS.get(tensor.dtype, _BYTES)


def moved(tensor: Any) -> Tuple[Buffers, int]:
    """The buffer of a contiguous tensor, whose numbers are moved as they are, and their type."""
    return (tensor.data_ptr(), tensor.nbytes), moved_kind(tensor)


def meant(dtype: Any) -> int:
    """What to add to the kind of the numbers that travel in place of those of a type."""
    return 0 if dtype in KINDS else MEANT.get(dtype, _OTHER)


def typed(tensor: Any) -> Tuple[Buffers, int]:
    """As `moved`, with the type that the other ranks must bring."""
    buffer, kind = moved(tensor)
    return buffer, kind | meant(tensor.dtype)


def plain(tensor: Any) -> Any:
    """The tensor without its history, and without views that only PyTorch knows."""
    tensor = tensor.detach()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor


class Place:
    """A contiguous tensor in place of one that is not, whose values go back after the call."""

    def __init__(self, tensor: Any, dtype: Optional[Any] = None) -> None:
        self._tensor = tensor.detach()
        self.tensor = plain(tensor).contiguous()
        if dtype is not None:
            self.tensor = self.tensor.to(dtype)

    def put_back(self) -> None:
        if self.tensor.data_ptr() != self._tensor.data_ptr() or self.tensor.dtype != self._tensor.dtype:
            self._tensor.copy_(self.tensor)
