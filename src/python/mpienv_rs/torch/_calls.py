"""The order of a group's calls, and the thread that makes those for which the program does not wait at once."""

from __future__ import annotations

import _thread
import copy
import datetime
import functools
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Any, Callable, Deque, List, Optional, Protocol, Union

import torch
from torch.distributed import _Work

from ._library import NOT_BEGUN, WAITS

_NO_TIMEOUT = datetime.timedelta(0)
# How often to look whether callbacks have ended, in seconds.
_PAUSE = 0.001


# The last works that only PyTorch's C++ may have. It does not say when it no longer needs one.
_KEPT: Deque[Call] = deque(maxlen=1000)


class _Search(threading.local):
    """This thread's search for the call behind a work of PyTorch's."""

    is_on = False
    found: Optional[Call] = None


_SEARCH = _Search()
_NO_FUTURE: Any = torch.futures.Future()


class Call(_Work):  # type: ignore[misc]
    """A call that was begun. It keeps what it was given until it ends."""

    def __init__(self, calls: Order, make: Optional[Callable[[], Any]], tensors: List[Any]) -> None:
        super().__init__()
        self._calls = calls
        self._make = make
        self._tensors = tensors
        self._error: Optional[BaseException] = None
        self._future: Optional[Any] = None
        self._is_done = self._is_kept = False
        # Open once the call has ended.
        self._gate = _thread.allocate_lock()
        self._gate.acquire()

    def keep(self) -> None:
        """Keeps the call, because PyTorch's C++ does not keep what is Python's of a work that it gets."""
        self._is_kept = True
        _KEPT.append(self)

    def run(self) -> None:
        complete = self.made()
        if complete is not None:
            complete()

    def made(self) -> Optional[Callable[[], None]]:
        """Makes the call, and returns what completes its future, if it has one.

        The future's callbacks may make calls too. So the thread gives up its turn before it
        completes it.
        """
        make, self._make = self._make, None
        try:
            assert make is not None
            make()
        except BaseException as error:
            # Without the frames, of which this one keeps the call: Python does not find a cycle through PyTorch's works.
            error.__context__ = None
            self._error = error.with_traceback(None)
        with self._calls.lock:
            self._is_done = True
            self._gate.release()
            future = self._future
        return None if future is None else functools.partial(future.set_result, self._tensors)

    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        seconds = timeout.total_seconds()
        # A call cannot end before it is through: with a timeout, another thread makes it.
        if not self._is_done and (seconds > 0 or not self._calls.run_now(self)):
            self._calls.check_outside()
            try:
                limit = min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else -1
                is_over = self._gate.acquire(timeout=limit)
            except BaseException as raised:
                # Another thread makes the call, or one before it.
                self._calls.interrupted(raised)
                raise
            if not is_over:
                raise torch.distributed.DistBackendError(f"mpienv: the call did not end within {seconds:g} s")
            self._gate.release()
        if self._error is not None:
            # The error gets the frames that wait, and these keep the call. So the call keeps a copy without them.
            error, self._error = self._error, _copied(self._error)
            raise error
        if self._is_kept:
            self._tensors = []
        return True

    def get_future(self) -> Any:
        """A future of the tensors. It fails as the call does."""
        if _SEARCH.is_on:
            _SEARCH.found = self
            return _NO_FUTURE
        future: Any = torch.futures.Future()
        # Only an error that a callback raises reaches those who wait in C++.
        checked = future.then(self._value)
        with self._calls.lock:
            is_done = self._is_done
            if not is_done:
                if self._future is None:
                    self._future = future
                else:
                    self._future.then(lambda _: future.set_result(self._tensors))
        if is_done:
            future.set_result(self._tensors)
        return checked

    def _value(self, future: Any) -> Any:
        if self._error is not None:
            raise self._error
        if self._is_kept:
            self._tensors = []
        return future.value()

    def is_completed(self) -> bool:
        return self._is_done

    def is_success(self) -> bool:
        return self._is_done and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> List[Any]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """The rank of the group that sent what was received."""
        raise RuntimeError("mpienv: only a receive has a rank that sends")

    def _source_rank(self) -> int:
        return self.source_rank()

    def synchronize(self) -> None:
        self.wait()


class Order(Protocol):
    """What a call asks for its turn."""

    lock: threading.Lock

    def run_now(self, call: Any) -> bool:
        """Makes a call in this thread if it can, and returns whether the call has ended."""

    def check_outside(self) -> None:
        """Fails in a signal's handler, for which the call that it interrupts would wait in vain."""

    def interrupted(self, error: BaseException) -> None:
        """Ends the calls after what a signal's handler raised while another thread makes them."""


def check_not_inside(is_inside: bool) -> None:
    if is_inside:
        raise RuntimeError("mpienv: a signal's handler cannot use the group during a call of it")


class Calls:
    """Makes calls one at a time, in the order in which they were begun."""

    def __init__(
        self,
        name: str,
        nudge_later: Optional[Callable[[Any], None]] = None,
        *,
        interrupted: Callable[[BaseException], None],
    ) -> None:
        """`nudge_later` calls `nudge` a moment after a call is begun. Without it, the thread wakes for each call at once."""
        self.lock, self.interrupted = threading.Lock(), interrupted
        self._name, self._nudge_later = name, nudge_later
        self._waiting: Deque[Call] = deque()
        # Whether a thread makes a call, and which one made the last.
        self._is_busy = False
        self._maker = 0
        self._is_closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        # One, and more if callbacks make calls: so many of these threads complete futures.
        self._threads: List[threading.Thread] = []
        self._completing = 0

    def make(self, make: Callable[[], Any]) -> None:
        """Makes a call after all that were begun before, in this thread if no other one makes a call."""
        is_next = False
        try:
            with self.lock:
                if not self._is_busy and not self._waiting:
                    # First, because a signal's handler reads both without the lock.
                    self._maker = _thread.get_ident()
                    self._is_busy = is_next = True
            if is_next:
                make()
        finally:
            # Without a call before it, which Ctrl-C could interrupt.
            if is_next:
                self._is_busy = False
                if self._waiting:
                    self._pass_on()
        if not is_next:
            self.check_outside()
            self.begin(make, []).wait()

    def begin(self, make: Callable[[], Any], tensors: List[Any]) -> Call:
        """Lets the group's thread make a call, or the thread that waits for it first."""
        call = Call(self, make, tensors)
        with self.lock:
            is_closed = self._is_closed
            if not is_closed:
                self._waiting.append(call)
                if self._nudge_later is None:
                    self._start()
            # After the call waits, because a call that ends does not lock.
            is_busy = self._is_busy
        if is_closed:
            # It fails.
            call.run()
        elif self._nudge_later is not None:
            self._nudge_later(self)
        elif not is_busy:
            self._wake.put(None)
        return call

    def begin_here(self, begin: Callable[[], int], end: Callable[[], Any], tensors: List[Any]) -> Union[bool, Call]:
        """Begins a call in this thread if no other waits or runs. Returns whether that has made it, or the call that ends it."""
        code, is_next, call = NOT_BEGUN, False, None
        try:
            with self.lock:
                if not self._is_busy and not self._waiting and not self._is_closed:
                    self._maker = _thread.get_ident()
                    self._is_busy = is_next = True
            if is_next:
                code = begin()
        finally:
            if is_next:
                if code == WAITS:
                    call = Call(self, end, tensors)
                    # Before those that were begun meanwhile.
                    self._waiting.appendleft(call)
                self._is_busy = False
                if self._waiting:
                    with self.lock:
                        self._start()
                    self._wake.put(None)
        return code == 0 if call is None else call

    def failed(self, error: Exception, tensors: List[Any]) -> Call:
        """A call that has failed."""

        def fail() -> None:
            raise error

        call = Call(self, fail, tensors)
        call.run()
        return call

    def _start(self) -> None:
        """Starts a thread if all may wait for calls themselves. This thread holds the lock."""
        if len(self._threads) == self._completing:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self) -> None:
        """Lets another thread make the calls that wait."""
        if self._nudge_later is None:
            self._wake.put(None)
        else:
            self._nudge_later(self)

    def nudge(self) -> None:
        """Wakes the thread if no other thread makes the calls that wait."""
        if self._waiting and not self._is_busy:
            with self.lock:
                self._start()
            self._wake.put(None)

    def run_now(self, call: Call) -> bool:
        """Makes a call that is waited for in this thread, if it is the next one and no other thread makes one."""
        is_next, complete = False, None
        try:
            with self.lock:
                if not self._is_busy and self._waiting and self._waiting[0] is call:
                    self._maker = _thread.get_ident()
                    self._is_busy = is_next = True
                    self._waiting.popleft()
            if is_next:
                complete = call.made()
        finally:
            # As in make.
            if is_next:
                self._is_busy = False
                if self._waiting:
                    self._pass_on()
        if complete is not None:
            complete()
        return is_next

    def close(self) -> None:
        """Waits for all calls that were begun, and for callbacks, and ends the threads."""
        is_inside = self.is_inside()
        own = threading.current_thread() in self._threads
        while True:
            if not is_inside:
                self.make(lambda: None)
            with self.lock:
                # Callbacks may begin further calls.
                is_over = not self._is_busy and not self._waiting and self._completing <= own
                self._is_closed = is_inside or is_over
                threads = list(self._threads)
            if self._is_closed:
                break
            time.sleep(_PAUSE)
        for _ in threads:
            self._wake.put(None)
        for thread in threads:
            if thread is not threading.current_thread() and not is_inside:
                thread.join()

    def is_busy(self) -> bool:
        return self._is_busy or bool(self._waiting) or self._completing > 0

    def is_inside(self) -> bool:
        """Whether this thread makes a call: a signal's handler runs while the call waits."""
        return self._is_busy and self._maker == _thread.get_ident()

    def check_outside(self) -> None:
        check_not_inside(self.is_inside())

    def _work(self) -> None:
        while True:
            self._wake.get()
            while True:
                with self.lock:
                    if self._is_busy or not self._waiting:
                        if self._is_closed:
                            return
                        break
                    call = self._waiting.popleft()
                    self._maker = _thread.get_ident()
                    self._is_busy = True
                complete = call.made()
                with self.lock:
                    self._is_busy = False
                    if complete is not None:
                        self._completing += 1
                        if self._waiting:
                            # A callback may wait for them.
                            self._start()
                            self._wake.put(None)
                if complete is not None:
                    complete()
                    with self.lock:
                        self._completing -= 1
                        if len(self._threads) - self._completing > 2:
                            # Two are enough to take turns.
                            self._threads.remove(threading.current_thread())
                            return
                # The thread must not keep the tensors of the last call.
                del call, complete


def _copied(error: BaseException) -> BaseException:
    try:
        copied: BaseException = copy.copy(error)
    except Exception:
        # One of a program's own class, which takes other arguments than its `args`.
        return error
    return copied


def _call_behind(work: Any) -> Optional[Call]:
    """The call behind a work, or None if the work is another backend's."""
    _SEARCH.is_on, _SEARCH.found = True, None
    try:
        work.get_future()
    except RuntimeError:
        # Works of some backends have no future.
        pass
    finally:
        # This thread must not keep the call's tensors.
        found, _SEARCH.is_on, _SEARCH.found = _SEARCH.found, False, None
    return found


def ask_calls() -> None:
    """Lets the methods of PyTorch's works reach the calls behind them.

    For each call of a backend, PyTorch hands out a work of its own, which passes on only `wait` and `get_future`. Without this, a
    program that asks again and again whether a work is completed would never end.
    """
    for name in ("is_completed", "is_success", "result", "source_rank", "_source_rank"):
        setattr(_Work, name, _asking(name))


def _asking(name: str) -> Callable[[Any], Any]:
    of_work = getattr(_Work, name)

    @functools.wraps(of_work)
    def method(work: Any) -> Any:
        call = _call_behind(work) if type(work) is _Work else None
        return of_work(work) if call is None else getattr(call, name)()

    return method
