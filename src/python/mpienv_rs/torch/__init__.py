"""PyTorch on CPUs over mpienv: ``torch.distributed.init_process_group("mpienv")``.

PyTorch finds `register` through the entry points of this package, so a program does not import this module.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional, Tuple

__all__ = ["register"]

# The versions that this package is tested with. PyTorch calls the interface of a backend experimental.
_OLDEST = (2, 14)
_NEWEST = (2, 15)


def register() -> None:
    """Registers the backend ``mpienv`` for tensors on CPUs.

    PyTorch calls this when a program asks for the backend. Before PyTorch 2.14, a backend cannot be written in Python,
    and this raises an `ImportError`.
    """
    import torch
    import torch.distributed as dist

    version = _version(torch.__version__)
    supported = f"{_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}"
    if version < _OLDEST:
        raise ImportError(
            f"the backend mpienv needs PyTorch {supported}, and this is {torch.__version__}; "
            'install a newer PyTorch, or use the backend "gloo"'
        )
    if version > _NEWEST:
        warnings.warn(
            f"the backend mpienv is tested with PyTorch {supported}, and this is {torch.__version__}", stacklevel=2
        )
    dist.Backend.register_backend("mpienv", _create, extended_api=True, devices=["cpu"])


def _version(text: str) -> Tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _create(options: Any, _: Optional[Any]) -> Any:
    import torch
    import torch.distributed as dist

    from ._backend import MpienvBackend

    backend = MpienvBackend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        list(options.global_ranks_in_group),
    )
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        # PyTorch puts a wrapper that checks the calls around the backend. It finds the methods of a backend that is written in
        # Python only after a process group has held the backend.
        group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return backend
