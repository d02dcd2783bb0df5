"""The library with the collective operations, called through ctypes, which lets other threads run meanwhile."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from struct import pack
from typing import Any, Callable, Optional, Sequence, Tuple

from ._signals import Handlers, interruptible

_NAME = "libmpienv_torch.so"

_ARGUMENTS = {
    "connect": (c_uint32, c_uint32, c_int32, c_char_p, c_uint16, c_char_p, c_uint64, c_void_p, c_void_p),
    "call": (c_void_p, c_char_p, c_char_p, c_void_p),
    "connection": (c_void_p, c_uint32, c_void_p, c_size_t, c_void_p),
    "pair": (
        c_uint32, c_uint32, c_int32, c_char_p, c_uint16, c_char_p, c_char_p, c_uint64, c_int32, c_void_p, c_void_p, c_void_p,
    ),
    "next": (c_void_p, c_uint64, c_void_p, c_void_p),
    "set_timeout": (c_void_p, c_uint64),
    "release": (c_void_p,),
    "cancel": (c_void_p,),
    "close": (c_void_p,),
    "describe": (c_void_p, c_void_p, c_size_t),
    "error": (c_void_p, c_size_t, c_void_p),
    "kind": (c_char_p,),
}

# What `Failure.code` says.
REFUSED = 1
LOST = 2
TIMED_OUT = 3
CANCELED = 4
ENVIRONMENT = 5

# What `Group.begin_reduce` returns: it waits for `end_reduce`, or has not begun, so that only `reduce` remains.
WAITS = -1
NOT_BEGUN = -2

_ENDED = "a signal's handler raised {} during an earlier call, which ended the group: destroy it and make a new one"
_SIZES = ("connection", "describe", "error")
_NOTHING = ("cancel", "close", "release")


# The kind of a message that has not come.
_NONE = 0xFFFF

# The address and the length of each buffer of a call.
Buffers = Tuple[int, ...]


class _Next(ctypes.Structure):
    """A message that is expected, or the one that is next."""

    _fields_ = [("length", c_uint64), ("tag", c_uint32), ("kind", c_uint16), ("is_received", c_uint8)]


class Failure(Exception):
    """Why a call failed, and the rank of the group that the text names."""

    def __init__(self, text: str, code: int, rank: Optional[int]) -> None:
        super().__init__(text)
        self.code = code
        self.rank = rank

    def __reduce__(self) -> Any:
        return Failure, (str(self), self.code, self.rank)


def closed() -> Failure:
    return Failure("the group is closed", CANCELED, None)


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), _NAME)
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        remedy = "install mpienv-rs again, from a wheel for this system"
        if not os.path.exists(path):
            remedy = "run `pip install ./src/python` in the project's folder"
        raise ImportError(f"{error}; {remedy}") from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, f"mpienv_torch_{name}")
        function.argtypes = arguments
        function.restype = None if name in _NOTHING else c_size_t if name in _SIZES else c_int32
    return loaded


def request(kind: int, root: int, other: int, sent: Buffers, received: Buffers) -> bytes:
    """What a call is about, as the table in the library's call.rs has it."""
    return pack(
        f"{5 + len(sent) + len(received)}q", kind, root, other, len(sent) // 2, len(received) // 2, *sent, *received
    )


_NOTHING_MOVES = request(0, 0, 0, (), ())


def kind_of(name: str) -> int:
    """The number of a type."""
    number: int = library().mpienv_torch_kind(name.encode())
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


class Connected:
    """Ranks that are connected. Their calls take addresses and counts."""

    def __init__(self, connect: str, arguments: Sequence[Any], end: Optional[Callable[[], None]] = None) -> None:
        self._handle, self._handlers, self._process = c_void_p(), Handlers(), os.getpid()
        self._timeout: Optional[float] = None
        self._library = library()
        function = getattr(self._library, f"mpienv_torch_{connect}")
        interruptible(lambda: check(function(*arguments, self._handlers.function, byref(self._handle))), end)
        self._call = self._calling("call")

    def _calling(self, name: str) -> Any:
        """A function of the library, of which this raises the failures."""
        function, handle = getattr(self._library, f"mpienv_torch_{name}"), self._handle
        handlers = self._handlers

        def call(*arguments: Any) -> int:
            code: int = function(handle, *arguments)
            if code > 0:
                handlers.check()
                if code == CANCELED and handlers.ended_by is not None:
                    raise Failure(_ENDED.format(handlers.ended_by), code, None)
                check(code)
            return code

        return call

    def wait_within(self, seconds: float) -> None:
        """Lets later calls wait so long for another rank."""
        if seconds != self._timeout:
            check(self._library.mpienv_torch_set_timeout(self._handle, max(1, int(seconds * 1000))))
            self._timeout = seconds

    def describe(self) -> str:
        buffer = ctypes.create_string_buffer(1024)
        length = self._library.mpienv_torch_describe(self._handle, buffer, len(buffer))
        return buffer.raw[: min(length, len(buffer))].decode(errors="replace")

    def cancel(self) -> None:
        """Ends the call that runs in another thread, and all later ones."""
        self._library.mpienv_torch_cancel(self._handle)

    def end_by(self, error: BaseException) -> None:
        """Cancels all calls, because a signal's handler has raised an error."""
        self._handlers.ended_by = type(error).__name__
        self.cancel()

    def close(self, process: Callable[[], int] = os.getpid) -> None:
        """Closes the connections. No call runs, and later ones fail."""
        # At the end of the interpreter, the module is empty.
        if self._process != process():
            # A thread that was not forked may have been in a call.
            return
        handle, self._handle.value = self._handle.value, None
        if handle is not None:
            self._library.mpienv_torch_close(handle)

    def release(self) -> None:
        """Closes the copies that a forked process has of the connections."""
        self._library.mpienv_torch_release(self._handle)

    def __del__(self) -> None:
        self.close()


class Group(Connected):
    """A connected group of ranks."""

    def __init__(
        self, rank: int, size: int, listener: Optional[int], host: str, port: int, secret: str, timeout: float
    ) -> None:
        self.secret = secret
        number = -1 if listener is None else listener
        milliseconds = max(1, int(timeout * 1000))
        super().__init__("connect", (rank, size, number, host.encode(), port, secret.encode(), milliseconds))

    def reduce(self, values: Buffers, kind: int, by: bytes, root: int) -> None:
        self._call(b"reduce", by, request(kind, root, 0, (), values))

    def begin_reduce(self, values: Buffers, kind: int, by: bytes, microseconds: int) -> int:
        """Reduces to all ranks. Returns 0, WAITS if other ranks have not come within that time or twice it, or NOT_BEGUN."""
        code: int = self._call(b"begin_reduce", by, request(kind, 0, microseconds, (), values))
        return code

    def end_reduce(self, values: Buffers, kind: int, by: bytes) -> None:
        """Ends what was begun. No other call of the group may come before it."""
        self._call(b"end_reduce", by, request(kind, 0, 0, (), values))

    def reduce_scatter(self, values: Buffers, part: Buffers, kind: int, by: bytes) -> None:
        self._call(b"reduce_scatter", by, request(kind, 0, 0, values, part))

    def broadcast(self, values: Buffers, kind: int, root: int) -> None:
        self._call(b"broadcast", None, request(kind, root, 0, (), values))

    def gather(self, values: Buffers, into: Buffers, kind: int, root: int) -> None:
        self._call(b"gather", None, request(kind, root, 0, values, into))

    def scatter(self, parts: Buffers, into: Buffers, kind: int, root: int) -> None:
        self._call(b"scatter", None, request(kind, root, 0, parts, into))

    def pass_on(self, sent: Buffers, to: int, received: Buffers, source: int, kind: int) -> None:
        self._call(b"pass", None, request(kind, to, source, sent, received))

    def barrier(self) -> None:
        self._call(b"barrier", None, _NOTHING_MOVES)

    def agree(self, built: str, count: int, kind: int, root: int) -> None:
        """Compares a call that is built of others, before these."""
        self._call(b"agree", built.encode(), request(kind, root, count, (), ()))

    def connection(self, rank: int) -> Tuple[int, str]:
        """A copy of the connection to a rank, which the caller closes, and the rank's host."""
        buffer, descriptor = ctypes.create_string_buffer(1024), c_int32(-1)
        length = self._library.mpienv_torch_connection(self._handle, rank, buffer, len(buffer), byref(descriptor))
        if descriptor.value == 0:
            raise closed()
        if descriptor.value < 0:
            raise Failure(f"this rank cannot open a file descriptor: {os.strerror(-descriptor.value)}", ENVIRONMENT, None)
        return descriptor.value, buffer.raw[: min(length, len(buffer))].decode(errors="replace")


class Pair(Connected):
    """A rank that sends messages to another."""

    def __init__(
        self,
        names: Tuple[int, int],
        listener: Optional[int],
        place: Tuple[str, int],
        key: bytes,
        other_host: str,
        timeout: float,
        watched: int,
        is_canceled: c_int32,
    ) -> None:
        """`is_canceled` becomes 1 when connecting must end; it also ends when the other rank closes `watched`."""
        (host, port), number = place, -1 if listener is None else listener
        milliseconds = max(1, int(timeout * 1000))
        arguments = (
            *names, number, host.encode(), port, key, other_host.encode(), milliseconds, watched, byref(is_canceled),
        )

        def end() -> None:
            is_canceled.value = 1

        super().__init__("pair", arguments, end)
        self._wait_for_next, self._next = self._calling("next"), _Next()

    def send(self, values: Buffers, kind: int, tag: int) -> None:
        self._call(b"send", None, request(kind, 0, tag, values, ()))

    def receive(self, values: Buffers, kind: int, tag: int) -> None:
        self._call(b"receive", None, request(kind, 0, tag, (), values))

    def next(self, seconds: float, address: int, length: int, kind: int, tag: int) -> Tuple[bool, int, int, int]:
        """Waits for the next message, and receives it if it is this one. Returns whether it was, its tag, kind and length."""
        found = self._next
        found.length, found.tag, found.kind = length, tag, kind
        self._wait_for_next(max(1, int(seconds * 1000)), address, byref(found))
        return bool(found.is_received), found.tag, found.kind, found.length

    def look(self) -> Optional[Tuple[int, int, int]]:
        """The tag, the kind and the length of the next message if it has come."""
        found = self._next
        # None is expected.
        found.kind = _NONE
        self._wait_for_next(0, None, byref(found))
        return None if found.kind == _NONE else (found.tag, found.kind, found.length)


def pieces(addresses: Sequence[int], length: int) -> Buffers:
    """Buffers, each of `length` bytes."""
    return tuple(number for address in addresses for number in (address, length))
