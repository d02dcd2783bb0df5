"""The process group in Python that PyTorch 2.4 to 2.13 take, which let only C++ write a backend."""

from __future__ import annotations

import datetime
import functools
import sys
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist
import torch._C._distributed_c10d as options
from torch.distributed import distributed_c10d

from ._calls import Call
from ._operations import Operations

_CPU = torch.device("cpu")
# Whether PyTorch's C++ loses what is Python's of a work.
_LOSES_WORKS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)


class MpienvGroup(Operations, dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose operations are mpienv's."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, ranks: Sequence[int]) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._names = {"name": "", "desc": ""}
        self._start(store, rank, size, timeout, ranks)

    # What PyTorch asks of the backends of a group.

    def _get_backend(self, device: Any) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    @property
    def _device_types(self) -> Any:
        return [_CPU]

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupDesc(self) -> str:
        return self._names["desc"]

    def setGroupDesc(self, text: str) -> None:
        self._names["desc"] = text

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc


    def monitored_barrier(
        self, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False
    ) -> None:
        opts = options.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        super().monitored_barrier(opts, wait_all_ranks)


def _as_pytorch_calls(method: Callable[..., Any], options: Any, lists: int) -> Callable[..., Any]:
    """A method that also takes what the calls of PyTorch's own groups take: fewer options, and a tensor in place of a list.

    The first arguments are `lists` lists, or if it is negative, arguments of another kind.
    """
    count = abs(lists)

    @functools.wraps(method)
    def call(self: MpienvGroup, *arguments: Any, opts: Optional[Any] = None) -> Any:
        given, rest = list(arguments[:count]), arguments[count:]
        if len(rest) == 1 and isinstance(rest[0], options):
            opts = rest[0]
        elif opts is None:
            opts = options()
            for value in rest:
                setattr(opts, "rootRank" if isinstance(value, int) else "reduceOp", value)
        if lists > 0 and any(isinstance(value, torch.Tensor) for value in given):
            given = [[value] for value in given]
        work = method(self, *given, opts)
        if _LOSES_WORKS and isinstance(work, Call) and not _is_called_by_python():
            work.keep()
        return work

    return call


def _is_called_by_python() -> bool:
    """Whether the caller of the method is PyTorch's Python, which keeps the work that it gets."""
    try:
        return sys._getframe(2).f_globals is distributed_c10d.__dict__
    except ValueError:
        # A thread of PyTorch's C++ has no frame before.
        return False


for _name, _from, _options, _lists in (
    ("allreduce", "allreduce", options.AllreduceOptions, 1),
    ("allreduce_coalesced", "allreduce_coalesced", options.AllreduceCoalescedOptions, 1),
    ("reduce", "reduce", options.ReduceOptions, 1),
    ("broadcast", "broadcast", options.BroadcastOptions, 1),
    ("allgather", "allgather", options.AllgatherOptions, 2),
    ("allgather_coalesced", "allgather_coalesced", options.AllgatherOptions, -2),
    ("_allgather_base", "all_gather_single", options.AllgatherOptions, -2),
    ("allgather_into_tensor_coalesced", "all_gather_single_coalesced", options.AllgatherOptions, -2),
    ("reduce_scatter", "reduce_scatter", options.ReduceScatterOptions, 2),
    ("_reduce_scatter_base", "reduce_scatter_single", options.ReduceScatterOptions, -2),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", options.ReduceScatterOptions, -2),
    ("gather", "gather", options.GatherOptions, 2),
    ("scatter", "scatter", options.ScatterOptions, 2),
    ("alltoall", "alltoall", options.AllToAllOptions, -2),
    ("alltoall_base", "all_to_all_single", options.AllToAllOptions, -4),
    ("barrier", "barrier", options.BarrierOptions, 0),
):
    _call = _as_pytorch_calls(getattr(Operations, _from), _options, _lists)
    setattr(MpienvGroup, _name, _call)
    # PyTorch's names from 2.14 on, some of which earlier versions have too.
    setattr(MpienvGroup, _from, _call)


def _close_with_pytorch() -> None:
    """Lets destroy_process_group close groups in Python too, of which these versions only forget the name."""
    original = getattr(distributed_c10d, "_shutdown_backend", None)
    if original is None:
        return

    @functools.wraps(original)
    def shut_down(group: Any) -> None:
        group.shutdown() if isinstance(group, MpienvGroup) else original(group)

    distributed_c10d._shutdown_backend = shut_down


_close_with_pytorch()
