"""Receives that name no rank: the first message with their tag, whichever rank sends it.

Nothing tells which rank will send. So one thread looks at all connections in turn, and connects to the ranks that begin to
send: one that waits for such a message, or else a thread for all of these receives.
"""

from __future__ import annotations

import _thread
import time
from typing import Any, Callable, Dict, List, Sequence

from ._calls import Call
from ._library import CANCELED, LOST, TIMED_OUT, Failure, closed
from ._links import Ranks
from ._reading import Reading

# The pause between two looks at first and at most, and between two questions to the store, in seconds.
_PAUSES = 0.00002, 0.002
_QUESTIONS = 0.001


class FromAny(Reading):
    """The receives that name no rank. They get a message if no receive of its rank and tag was begun."""

    def __init__(self, ranks: Ranks, incoming: Callable[[int], Any], nudge_later: Callable[[Any], None]) -> None:
        """`incoming` has the messages of a rank."""
        super().__init__("mpienv from any rank", nudge_later)
        self._ranks, self._incoming = ranks, incoming
        # The ranks from which no message can come, and why.
        self._lost: Dict[int, Exception] = {}
        # Which rank without a connection is next to be asked for, and when.
        self._asked, self._asks_at = 0, 0.0

    def begin(self, receive: Any) -> Call:
        """Lets the thread look for a message, or the thread that waits for it first."""
        with self.lock:
            is_closed = self._is_closed
            if not is_closed:
                self._append(receive)
        if is_closed:
            receive.fail(closed())
        else:
            self._nudge_later(self)
        call: Call = receive
        return call

    def tags(self) -> List[int]:
        with self.lock:
            return list(self._receives)

    def pop(self, tag: int) -> Any:
        """The next receive with a tag, or None. Who gets it ends it."""
        with self.lock:
            return self._pop_of(tag)

    def _read_for(self, call: Call) -> None:
        try:
            self._look_until(call.is_completed)
        except BaseException:
            # A signal's handler has raised it.
            self._fail([call], Failure("a signal's handler raised an exception while it waited", CANCELED, None))
            raise

    def cancel(self) -> None:
        with self.lock:
            self._is_closed = True
        self._fail(self._all(), Failure("the call was canceled by another thread of this process", CANCELED, None))

    def close(self) -> None:
        """Ends the receives."""
        with self.lock:
            self._is_closed = True
        self._fail(self._all(), closed())

    def join(self) -> None:
        """Ends the thread, once the ways on which it may wait are closed."""
        self._wake.put(None)
        if self._thread is not None and not self._is_inside():
            self._thread.join()

    def release(self) -> None:
        """There is no connection."""

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.get()
            with self.lock:
                is_reader = bool(not self._reader and self._receives)
                if is_reader:
                    self._reader = _thread.get_ident()
            if is_reader:
                self._look_until(lambda: not self._receives)
                self._reader = 0
                if self._receives:
                    # It was begun just now.
                    self._wake.put(None)

    def _look_until(self, is_over: Callable[[], bool]) -> None:
        pause, longest = _PAUSES
        while not is_over() and not self._is_closed:
            self._look()
            if not is_over():
                time.sleep(pause)
                pause = min(1.1 * pause, longest)

    def _look(self) -> None:
        """Looks at each rank once, but asks the store for only one of those without a connection."""
        size, own, now = len(self._ranks.names), self._ranks.own, time.monotonic()
        others = [rank for rank in range(size) if rank != own and rank not in self._lost]
        silent = [rank for rank in others if not self._ask(rank, lambda way: way.look())]
        # One that begins later gets what waits at the next look.
        receives = self._all()
        for rank in self._lost:
            # What it sent before may still wait.
            self._incoming(rank).hand_out()
        if silent and receives and now >= self._asks_at:
            self._asked, self._asks_at = self._asked + 1, now + _QUESTIONS
            self._ask(silent[self._asked % len(silent)], lambda way: way.join(receives[0].longest))
        losses = [str(error) for error in self._lost.values()]
        if len(losses) == size - 1:
            self._fail(receives, Failure("; ".join(["no rank is left that can send", *losses]), LOST, None))
        for receive in receives:
            if receive.deadline < now:
                text = f"no rank sent a message with tag {receive.tag} within {receive.longest:g} s"
                self._fail([receive], Failure("; ".join([text, *losses]), TIMED_OUT, None))

    def _ask(self, rank: int, look: Callable[[Any], bool]) -> bool:
        """Whether there is a connection to a rank, or none can be."""
        try:
            return look(self._incoming(rank))
        except Exception as error:
            self._lost[rank] = error
            return True

    def _fail(self, receives: Sequence[Any], failure: Failure) -> None:
        """Fails those of the receives that still wait."""
        failed = []
        with self.lock:
            for receive in receives:
                of_tag = self._receives.get(receive.tag)
                if of_tag is not None and receive in of_tag:
                    of_tag.remove(receive)
                    failed.append(receive)
                    if not of_tag:
                        del self._receives[receive.tag]
        for receive in failed:
            receive.fail(failure)
