"""Lets Python run the handlers of signals while a call waits, so that Ctrl-C ends the call."""

from __future__ import annotations

import concurrent.futures
import ctypes
import threading
from typing import Callable, Generator, Optional, TypeVar

T = TypeVar("T")

_Function = ctypes.CFUNCTYPE(ctypes.c_int32)


class Handlers:
    """What the library calls while a call of a group waits in the main thread."""

    def __init__(self) -> None:
        self._raised: Optional[BaseException] = None
        # What a handler raised during an earlier call, which ended the group.
        self.ended_by: Optional[str] = None
        answers = self._answers()
        next(answers)
        # Not a function: Python would run the handlers as it enters one, before anything catches what they raise.
        self.function = _Function(answers.__next__)

    def _answers(self) -> Generator[int, None, None]:
        """Whether a handler has raised an exception. Python runs the handlers whenever this goes on."""
        answer = 0
        while True:
            try:
                while True:
                    yield answer
                    answer = 0
            except GeneratorExit:
                return
            except BaseException as error:
                self._raised = error
                answer = 1

    def check(self) -> None:
        """Raises what a handler has raised during the call."""
        raised, self._raised = self._raised, None
        if raised is not None:
            self.ended_by = type(raised).__name__
            raise raised


def interruptible(make: Callable[[], T], end: Optional[Callable[[], None]] = None) -> T:
    """Makes a call in another thread, and lets handlers end the wait for it. `end` makes the call end soon."""
    if threading.current_thread() is not threading.main_thread():
        return make()
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return future.result()
    except BaseException:
        if end is not None:
            end()
        raise
    finally:
        if end is not None or future.done():
            thread.join()
