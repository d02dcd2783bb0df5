"""Receives that were begun, and which thread gets their messages."""

from __future__ import annotations

import _thread
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Callable, Deque, Dict, List, Optional

from ._calls import Call, check_not_inside


class Reading:
    """Receives whose messages one thread at a time gets: one that waits for a message, or their own."""

    def __init__(self, name: str, nudge_later: Callable[[Any], None]) -> None:
        """`name` is that of the thread. `nudge_later` calls `nudge` a moment after a receive is begun."""
        self.lock = threading.Lock()
        self._name, self._nudge_later = name, nudge_later
        # By tag, in the order in which they were begun.
        self._receives: Dict[int, Deque[Any]] = {}
        # The thread that reads, or 0.
        self._reader = 0
        self._is_closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def nudge(self) -> None:
        """Lets the own thread read if no other thread does."""
        if self._reader or not self._receives:
            return
        with self.lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        self._wake.put(None)

    def run_now(self, call: Call) -> bool:
        """Reads messages until this one has come, unless another thread does."""
        is_reader = False
        try:
            with self.lock:
                if not self._reader and not call.is_completed():
                    self._reader = _thread.get_ident()
                    is_reader = True
            if is_reader:
                self._read_for(call)
        finally:
            # Without a call before it, which Ctrl-C could interrupt.
            if is_reader:
                self._reader = 0
                if self._receives:
                    self._nudge_later(self)
        return call.is_completed()

    def check_outside(self) -> None:
        check_not_inside(self._is_inside())

    def interrupted(self, _: BaseException) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the receives, and all later ones."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        return bool(self._reader or self._receives)

    def _is_inside(self) -> bool:
        return self._reader == _thread.get_ident()

    def _work(self) -> None:
        """What the own thread does."""
        raise NotImplementedError

    def _read_for(self, call: Call) -> None:
        """Reads messages until this one has come."""
        raise NotImplementedError

    def _append(self, receive: Any) -> None:
        self._receives.setdefault(receive.tag, deque()).append(receive)

    def _pop_of(self, tag: int) -> Any:
        """The next receive with a tag, or None. Who gets it ends it."""
        receives = self._receives.get(tag)
        if receives is None:
            return None
        receive = receives.popleft()
        if not receives:
            del self._receives[tag]
        return receive

    def _all(self) -> List[Any]:
        with self.lock:
            return [receive for of_tag in self._receives.values() for receive in of_tag]
