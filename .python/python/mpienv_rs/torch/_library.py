"""The library with the collective operations, called through ctypes, which lets other threads run meanwhile."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Optional, Sequence

from ._signals import Handlers, interruptible

_NAME = "libmpienv_torch.so"

_ARGUMENTS = {
    "connect": (c_uint32, c_uint32, c_int32, c_char_p, c_uint16, c_char_p, c_uint64, c_void_p),
    "reduce": (c_void_p, c_void_p, c_size_t, c_uint8, c_uint8, c_int64),
    "reduce_scatter": (c_void_p, c_void_p, c_void_p, c_size_t, c_uint8, c_uint8),
    "broadcast": (c_void_p, c_void_p, c_size_t, c_uint8, c_uint32),
    "gather": (c_void_p, c_void_p, c_size_t, c_void_p, c_uint8, c_int64),
    "scatter": (c_void_p, c_void_p, c_void_p, c_size_t, c_uint8, c_int64),
    "pass": (c_void_p, c_void_p, c_size_t, c_int64, c_void_p, c_size_t, c_int64, c_uint8),
    "barrier": (c_void_p,),
    "ask": (c_void_p, c_void_p),
    "cancel": (c_void_p,),
    "close": (c_void_p,),
    "describe": (c_void_p, c_void_p, c_size_t),
    "error": (c_void_p, c_size_t, c_void_p),
    "kind": (c_char_p,),
    "reduction": (c_char_p,),
}

# What `Failure.code` says.
CANCELED = 4
_ENDED = "a signal's handler raised {} during an earlier call, which ended the group: destroy it and make a new one"


class Failure(Exception):
    """Why a call failed, and the rank of the group that the text names."""

    def __init__(self, text: str, code: int, rank: Optional[int]) -> None:
        super().__init__(text)
        self.code = code
        self.rank = rank


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), _NAME)
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        remedy = "install mpienv-rs again, from a wheel for this system"
        if not os.path.exists(path):
            remedy = "run .python/library in the project's folder before you build or install mpienv-rs"
        raise ImportError(f"{error}; {remedy}") from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, f"mpienv_torch_{name}")
        function.argtypes = arguments
        function.restype = {"cancel": None, "close": None, "describe": c_size_t, "error": c_size_t}.get(name, c_int32)
    return loaded


def number_of(what: str, name: str) -> int:
    """The number of a ``kind`` of numbers or of a ``reduction``."""
    number: int = getattr(library(), f"mpienv_torch_{what}")(name.encode())
    if number < 0:
        raise ImportError(f"{_NAME} does not know {name}: it is another version; install mpienv-rs again")
    return number


def check(code: int) -> None:
    """Raises this thread's failure."""
    if code == 0:
        return
    buffer, rank = ctypes.create_string_buffer(4096), c_int64()
    length = library().mpienv_torch_error(buffer, len(buffer), byref(rank))
    text = buffer.raw[: min(length, len(buffer))].decode(errors="replace")
    raise Failure(text, code, None if rank.value < 0 else rank.value)


class Group:
    """A connected group of ranks. Its calls take addresses and counts."""

    def __init__(
        self, rank: int, size: int, listener: Optional[int], host: str, port: int, secret: str, timeout: float
    ) -> None:
        self._handle, self._handlers = c_void_p(), Handlers()
        self._library = library()
        number = -1 if listener is None else listener
        milliseconds = max(1, int(timeout * 1000))
        arguments = (rank, size, number, host.encode(), port, secret.encode(), milliseconds, byref(self._handle))
        interruptible(lambda: check(self._library.mpienv_torch_connect(*arguments)))
        check(self._library.mpienv_torch_ask(self._handle, self._handlers.function))
        self.reduce = self._calling("reduce")
        self.reduce_scatter = self._calling("reduce_scatter")
        self.broadcast = self._calling("broadcast")
        self.gather = self._calling("gather")
        self.scatter = self._calling("scatter")
        self.pass_on = self._calling("pass")
        self.barrier = self._calling("barrier")

    def _calling(self, name: str) -> Any:
        function, handle = getattr(self._library, f"mpienv_torch_{name}"), self._handle
        handlers = self._handlers

        def call(*arguments: Any) -> None:
            code = function(handle, *arguments)
            if code:
                handlers.check()
                if code == CANCELED and handlers.ended_by is not None:
                    raise Failure(_ENDED.format(handlers.ended_by), code, None)
                check(code)

        return call

    def describe(self) -> str:
        buffer = ctypes.create_string_buffer(1024)
        length = self._library.mpienv_torch_describe(self._handle, buffer, len(buffer))
        return buffer.raw[: min(length, len(buffer))].decode(errors="replace")

    def cancel(self) -> None:
        """Ends the call that runs in another thread, and all later ones."""
        self._library.mpienv_torch_cancel(self._handle)

    def close(self) -> None:
        """Closes the group. No call runs, and later ones fail."""
        handle, self._handle.value = self._handle.value, None
        if handle is not None:
            self._library.mpienv_torch_close(handle)

    def __del__(self) -> None:
        self.close()


def addresses(of: Sequence[int]) -> Any:
    return (c_void_p * len(of))(*of)
