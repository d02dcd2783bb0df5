"""Messages between two ranks: all tags take one connection, in the order in which they are sent.

A message that comes before its receive waits here, so that it does not keep back those behind it.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch

from ._any_rank import FromAny
from ._calls import Call, Calls, Order
from ._library import CANCELED, REFUSED, TIMED_OUT, Failure, Pair, closed
from ._links import Link, Ranks
from ._reading import Reading
from ._tensors import SIZES, Place, moved, moved_kind, plain

# The most bytes of messages from one rank that wait for their receives.
LIMIT = 1 << 30

# How long a message waits for a thread of the program, and how long to look for more of them, in seconds.
_MOMENT = 0.001
_AWAKE = 0.02

# Makes the error that the program gets.
Failed = Callable[[Failure], Exception]


class Outgoing:
    """The messages to a rank."""

    def __init__(self, link: Link, nudge_later: Callable[[Any], None]) -> None:
        self._link = link
        name = f"mpienv to {link.to}"
        self._calls = Calls(name, nudge_later, interrupted=lambda _: link.cancel())

    def begin(self, tensor: Any, tag: int, timeout: float, failed: Failed) -> Call:
        link = self._link

        def send() -> None:
            try:
                with torch.no_grad():
                    values = plain(tensor).contiguous()
                    pair = link.pair(timeout)
                    pair.wait_within(timeout)
                    pair.send(*moved(values), tag)
            except Failure as failure:
                raise failed(failure) from None

        return self._calls.begin(send, [tensor])

    def is_busy(self) -> bool:
        return self._calls.is_busy()

    def cancel(self) -> None:
        self._link.cancel()

    def close(self) -> None:
        """Waits for the messages that were begun, and closes the connection."""
        if self._calls.is_inside():
            # A signal's handler closes the group during a call, which keeps it until it ends.
            self._link.cancel()
            self._calls.close()
            return
        self._calls.close()
        self._link.close()

    def release(self) -> None:
        self._link.release()


class Receive(Call):
    """A receive that was begun."""

    def __init__(self, calls: Order, source: int, tensor: Any, tag: int, timeout: float, failed: Failed) -> None:
        super().__init__(calls, None, [tensor])
        # Without a rank, -1 until a message has come.
        self.source = source
        self.tag, self.longest = tag, timeout
        self.deadline = time.monotonic() + timeout
        self._failed = failed
        self._place: Optional[Place] = None

    def place(self) -> Place:
        """Where the message goes."""
        if self._place is None:
            with torch.no_grad():
                self._place = Place(self._tensors[0])
        return self._place

    def source_rank(self) -> int:
        return self.source

    def end(self, make: Callable[[Any], None]) -> None:
        """Ends it with what fills a tensor, or fails."""

        def checked() -> None:
            try:
                place = self.place()
                make(place.tensor)
                with torch.no_grad():
                    place.put_back()
            except Failure as failure:
                raise self._failed(failure) from None

        self._make = checked
        self.run()

    def fail(self, error: BaseException) -> None:
        self._make = functools.partial(self._raise, error)
        self.run()

    def _raise(self, error: BaseException) -> None:
        raise (self._failed(error) if isinstance(error, Failure) else error) from None


class Incoming(Reading):
    """The messages of a rank."""

    _receives: Dict[int, Deque[Receive]]

    def __init__(self, from_any: FromAny, link: Link, nudge_later: Callable[[Any], None]) -> None:
        super().__init__(f"mpienv from {link.source}", nudge_later)
        self._link, self._from_any = link, from_any
        # By tag: the kind and the bytes of what nothing has received. No tag has both these and receives.
        self._waiting: Dict[int, Deque[Tuple[int, Any]]] = {}
        self._waiting_bytes = 0
        # Whether the next message has no room, and whether something was begun since.
        self._is_full = False
        self._news = threading.Event()

    def begin(self, tensor: Any, tag: int, timeout: float, failed: Failed) -> Call:
        """Lets the connection's thread receive a message, or the thread that waits for it first."""
        receive = Receive(self, self._link.source, tensor, tag, timeout, failed)
        with self.lock:
            is_closed = self._is_closed
            message = None if is_closed else self._take(tag)
            if message is None and not is_closed:
                self._append(receive)
        if is_closed:
            receive.fail(closed())
        elif message is not None:
            self._unpack(receive, *message)
        else:
            self._nudge_later(self)
        if self._is_full:
            self._news.set()
        return receive

    def hand_out(self) -> None:
        """Gives what waits to receives from any rank."""
        while True:
            with self.lock:
                tag = next((tag for tag in self._from_any.tags() if tag in self._waiting), None)
                receive = None if tag is None else self._pop_from_any(tag)
                message = None if tag is None or receive is None else self._take(tag)
            if receive is None or message is None:
                return
            self._unpack(receive, *message)

    def look(self) -> bool:
        """Receives what has come for receives from any rank, unless a thread waits for messages. Whether there is a connection."""
        self.hand_out()
        receive, is_reader = None, False
        try:
            with self.lock:
                if self._reader or self._receives or self._is_closed:
                    return True
                pair = self._link.connected()
                found = None if pair is None else pair.look()
                if pair is None or found is None:
                    return pair is not None
                self._reader = _thread.get_ident()
                is_reader = True
                tag, kind, length = found
                receive = self._pop(tag)
                fits = self._waiting_bytes + length <= LIMIT
            if receive is not None:
                self._receive(receive, pair, kind, length)
            elif fits:
                self._keep(pair, tag, kind, length)
        except BaseException as error:
            if receive is not None and not receive.is_completed():
                receive.fail(_as_failure(error))
            raise
        finally:
            self._end_look(is_reader)
        return True

    def join(self, timeout: float) -> bool:
        """Connects to the rank if it waits to send its first message. Whether it does. Fails if the rank is lost."""
        if not self._link.is_offered():
            return False
        is_reader = False
        try:
            with self.lock:
                if not self._reader and not self._is_closed:
                    self._reader = _thread.get_ident()
                    is_reader = True
            if is_reader:
                self._link.pair(timeout)
        finally:
            self._end_look(is_reader)
        return True

    def _end_look(self, is_reader: bool) -> None:
        """Lets the thread of the connection read what was begun meanwhile."""
        if is_reader:
            self._reader = 0
            if self._receives:
                self._nudge_later(self)

    def _read_for(self, call: Call) -> None:
        while not call.is_completed():
            self._read(call)

    def cancel(self) -> None:
        self._link.cancel()
        self._news.set()

    def close(self) -> None:
        """Ends the receives that wait for a message, and closes the connection."""
        with self.lock:
            self._is_closed = True
            thread = self._thread
        if self.is_busy():
            self.cancel()
        self._wake.put(None)
        if self._is_inside():
            # A signal's handler closes the group during a call, which keeps it until it ends.
            return
        while self._reader:
            # It ends soon.
            time.sleep(0.001)
        if thread is not None:
            thread.join()
        self._fail(closed())
        self._waiting.clear()
        self._link.close()

    def release(self) -> None:
        self._link.release()

    def _work(self) -> None:
        while True:
            self._wake.get()
            while True:
                with self.lock:
                    if self._reader or not self._receives:
                        if self._is_closed:
                            return
                        break
                    self._reader = _thread.get_ident()
                while self._receives:
                    self._read()
                self._reader = 0

    def _read(self, waited_for: Optional[Call] = None) -> None:
        """Waits for the next message, and gives it to the receive for it, or keeps it. All receives fail if that fails."""
        receive: Optional[Receive] = None
        try:
            first = self._first()
            pair = self._link.pair(first.longest)
            tensor = first.place().tensor
            patience, address, room = first.deadline - time.monotonic(), tensor.data_ptr(), tensor.nbytes
            is_received, tag, kind, length = pair.next(patience, address, room, moved_kind(tensor), first.tag)
            with self.lock:
                receive = self._pop(tag)
                fits = receive is None and self._waiting_bytes + length <= LIMIT
                self._is_full = receive is None and not fits
                self._news.clear()
            if is_received:
                first.end(_nothing)
            elif receive is not None:
                self._receive(receive, pair, kind, length)
            elif fits:
                self._keep(pair, tag, kind, length)
            else:
                self._wait_for_room(first, tag, length)
        except BaseException as error:
            # Only the thread that waits here gets what a signal's handler has raised.
            if receive is not None and not receive.is_completed():
                receive.fail(error if receive is waited_for else _as_failure(error))
            self._fail(error, waited_for)

    def _first(self) -> Receive:
        """The receive that ends first."""
        with self.lock:
            if len(self._receives) == 1:
                return next(iter(self._receives.values()))[0]
            return min((receives[0] for receives in self._receives.values()), key=lambda receive: receive.deadline)

    def _pop(self, tag: int) -> Optional[Receive]:
        """The next receive with a tag."""
        receive: Optional[Receive] = self._pop_of(tag)
        # Messages that wait come before those for any rank.
        return self._pop_from_any(tag) if receive is None and tag not in self._waiting else receive

    def _pop_from_any(self, tag: int) -> Optional[Receive]:
        receive: Optional[Receive] = self._from_any.pop(tag)
        if receive is not None:
            receive.source = self._link.source
        return receive

    def _take(self, tag: int) -> Optional[Tuple[int, Any]]:
        """The next message with a tag that waits."""
        messages = self._waiting.get(tag)
        if messages is None:
            return None
        kind, values = messages.popleft()
        if not messages:
            del self._waiting[tag]
        self._waiting_bytes -= values.numel()
        return kind, values

    def _receive(self, receive: Receive, pair: Pair, kind: int, length: int) -> None:
        """Receives the next message straight into its place, of which a shorter one fills the first numbers, as over gloo."""

        def fill(tensor: Any) -> None:
            # If it is of another type or longer, both ranks get an error.
            (address, room), own = moved(tensor)
            pair.receive((address, min(length, room) if kind == own else room), own, receive.tag)

        receive.end(fill)

    def _keep(self, pair: Pair, tag: int, kind: int, length: int) -> None:
        values = torch.empty(length, dtype=torch.uint8, device="cpu")
        pair.receive((values.data_ptr(), length), kind, tag)
        with self.lock:
            # It may have been begun meanwhile.
            receive = self._pop(tag)
            if receive is None:
                self._waiting.setdefault(tag, deque()).append((kind, values))
                self._waiting_bytes += length
        if receive is not None:
            self._unpack(receive, kind, values)

    def _unpack(self, receive: Receive, kind: int, values: Any) -> None:
        """Ends a receive with a message that has waited."""

        def fill(tensor: Any) -> None:
            own, room = moved_kind(tensor), tensor.nbytes
            if own != kind or values.numel() > room:
                raise self._differs(receive.tag, (kind, values.numel()), (own, room))
            ctypes.memmove(tensor.data_ptr(), values.data_ptr(), values.numel())

        receive.end(fill)

    def _differs(self, tag: int, found: Tuple[int, int], own: Tuple[int, int]) -> Failure:
        names = self._link.ranks.names
        source, to = names[self._link.source], names[self._link.to]
        sent, received = (f"{length // SIZES[kind][1]} {SIZES[kind][0]}" for kind, length in (found, own))
        text = (
            f"rank {source} called send of {sent} with tag {tag}, rank {to} receive of {received} with tag {tag}: "
            "a message needs the same type on both ranks, and room for its numbers"
        )
        return Failure(text, REFUSED, source)

    def _wait_for_room(self, first: Receive, tag: int, length: int) -> None:
        """Waits a moment for another receive, because the next message has no room among those that wait."""
        self._link.ranks.check(self._link.other)
        if first.deadline <= time.monotonic():
            name = self._link.ranks.names[self._link.source]
            text = (
                f"rank {name} sends {length} bytes with tag {tag} first, for which this rank does not call recv; messages of a "
                f"rank that wait for their recv have at most {LIMIT} bytes, and {self._waiting_bytes} wait: "
                "receive them in the order in which they are sent"
            )
            raise Failure(text, TIMED_OUT, name)
        self._news.wait(0.1)

    def _fail(self, error: BaseException, waited_for: Optional[Call] = None) -> None:
        with self.lock:
            receives = [receive for of_tag in self._receives.values() for receive in of_tag]
            self._receives.clear()
        for receive in receives:
            receive.fail(error if receive is waited_for else _as_failure(error))


def _as_failure(error: BaseException) -> Failure:
    if isinstance(error, Failure):
        return error
    return Failure(f"another thread of this process received messages of this rank: {error!r}", CANCELED, None)


def _nothing(_: Any) -> None:
    pass


class Nudges:
    """Wakes the threads of connections, but not for what a thread of the program waits for at once.

    Such a thread would take a processor and Python's lock from the program for each message.
    """

    def __init__(self) -> None:
        self._due: Deque[Any] = deque()
        self._is_awake = self._is_closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def later(self, way: Any) -> None:
        """Nudges a way of messages after a moment."""
        if self._is_closed:
            way.nudge()
            return
        self._due.append(way)
        if not self._is_awake:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="mpienv messages", daemon=True)
                    self._thread.start()
            self._wake.put(None)

    def close(self) -> None:
        self._is_closed = True
        self._wake.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.get()
            self._is_awake = True
            last = time.monotonic()
            while not self._is_closed and (self._due or time.monotonic() < last + _AWAKE):
                time.sleep(_MOMENT)
                ways = set()
                while self._due:
                    ways.add(self._due.popleft())
                    last = time.monotonic()
                for way in ways:
                    way.nudge()
            self._is_awake = False
            if self._due:
                # It was begun just now.
                self._wake.put(None)


class Messages:
    """The messages of a rank to all others and from them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._ways: Dict[Tuple[int, int], Any] = {}
        self._nudges = Nudges()
        self._from_any = FromAny(ranks, self._incoming, self._nudges.later)

    def send(self, tensor: Any, to: int, tag: int, timeout: float, failed: Failed) -> Call:
        call: Call = self._way(self._ranks.own, to, Outgoing).begin(tensor, tag, timeout, failed)
        return call

    def receive(self, tensor: Any, source: int, tag: int, timeout: float, failed: Failed) -> Call:
        call: Call = self._incoming(source).begin(tensor, tag, timeout, failed)
        return call

    def receive_from_any(self, tensor: Any, tag: int, timeout: float, failed: Failed) -> Call:
        return self._from_any.begin(Receive(self._from_any, -1, tensor, tag, timeout, failed))

    def _incoming(self, source: int) -> Any:
        return self._way(source, self._ranks.own, functools.partial(Incoming, self._from_any))

    def _way(self, source: int, to: int, new: Callable[[Link, Callable[[Any], None]], Any]) -> Any:
        with self._lock:
            way = self._ways.get((source, to))
            if way is None:
                way = self._ways[source, to] = new(Link(self._ranks, source, to), self._nudges.later)
        return way

    def ways(self) -> List[Any]:
        """The ways of messages to each rank and from it, after those from any rank."""
        return [self._from_any, *self._ways.values()]

    def close(self) -> None:
        """Ends what the ways need. They are closed."""
        self._nudges.close()
        self._from_any.join()
        self._ranks.store = None
