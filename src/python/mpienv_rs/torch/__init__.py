"""PyTorch on CPUs over mpienv: ``torch.distributed.init_process_group("mpienv")``.

From PyTorch 2.14 on, PyTorch finds `register` through the entry points of this package. For earlier versions, a program imports
this module first, or calls ``mpienv_rs.init_process_group("mpienv")``.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from typing import Any, Optional, Tuple

__all__ = ["register"]

# The versions that this package is tested with. PyTorch calls the interface of a backend experimental.
_OLDEST = (2, 4)
_NEWEST = (2, 15)
# The first version that takes a backend in Python, and not only a whole process group.
_BACKENDS = (2, 14)


def register() -> None:
    """Registers the backend ``mpienv`` for tensors on CPUs, unless it is registered.

    Importing this module does so too. Raises an `ImportError` before PyTorch 2.4.
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
    if hasattr(dist.Backend, "MPIENV"):
        return
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

    place = (
        options.store, options.group_rank, options.group_size, options.timeout, list(options.global_ranks_in_group),
    )
    if _version(torch.__version__) < _BACKENDS:
        _check_devices(torch.__version__)
        from ._group import MpienvGroup

        return MpienvGroup(*place)
    from ._backend import MpienvBackend

    backend = MpienvBackend(*place)
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        # PyTorch puts a wrapper that checks the calls around the backend. It finds the methods of a backend that is written in
        # Python only after a process group has held the backend.
        group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return backend


def _check_devices(version: str) -> None:
    """Fails if the group is to have other devices too: this PyTorch would leave out their backends without a word."""
    # PyTorch does not pass this on.
    config = sys._getframe(2).f_locals.get("backend_config")
    devices = {} if config is None else config.get_device_backend_map()
    others = [f"{device}:{backend}" for device, backend in devices.items() if device != "cpu"]
    if others:
        raise RuntimeError(
            f"mpienv: a group with {' and '.join(others)} beside cpu:mpienv needs PyTorch 2.14 or newer, and this is {version}; "
            f'initialize with "{",".join(["cpu:gloo", *others])}", and make a group of its own for tensors on CPUs: '
            'new_group(backend="mpienv")'
        )


# The library can be called without PyTorch.
if importlib.util.find_spec("torch") is not None:
    register()
