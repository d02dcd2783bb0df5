"""The backend of a process group, as PyTorch 2.14 and newer have it."""

from __future__ import annotations

import datetime
from typing import Any, Sequence, Set

from torch._C._distributed_c10d import Backend, ErrorType

from ._calls import ask_calls
from ._library import TIMED_OUT
from ._operations import Operations

# Those that were split from others, until they are closed: PyTorch does not keep what is Python's of them.
_SPLIT: Set[MpienvBackend] = set()

ask_calls()


class MpienvBackend(Operations, Backend):  # type: ignore[misc]
    """Collective operations on CPUs over mpienv."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, ranks: Sequence[int]) -> None:
        Backend.__init__(self, rank, size)
        self._options = Backend.Options("mpienv", timeout=timeout)
        self._options.global_ranks_in_group = list(ranks)
        self._start(store, rank, size, timeout, ranks)

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return False

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> MpienvBackend:
        """A group of some ranks of this one. Only they call this, with a store of the new group."""
        names = self._ranks or list(range(self._size))
        part = MpienvBackend(
            store, list(ranks).index(self._own), len(ranks), opts._timeout, [names[rank] for rank in ranks]
        )
        _SPLIT.add(part)
        return part

    def perform_nocolor_split(self, _: Any) -> None:
        """What PyTorch calls on the other ranks."""

    def get_error(self) -> Any:
        if self._failure == 0:
            return ErrorType.SUCCESS
        return ErrorType.TIMEOUT if self._failure == TIMED_OUT else ErrorType.COMM_ERROR

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        super()._set_default_timeout(timeout)
        self._options._timeout = timeout

    def _close(self) -> None:
        _SPLIT.discard(self)
        super()._close()
