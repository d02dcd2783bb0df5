"""Connections for messages: one from each rank to each other one, made with the first message."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import select
import time
from ctypes import c_int32
from typing import Any, Callable, Iterator, List, Optional, Tuple

from ._library import CANCELED, ENVIRONMENT, LOST, TIMED_OUT, Failure, Group, Pair, closed
from ._meeting import forget, listen

# How long the connection to a rank takes at most to show that the rank has ended, in seconds.
_NEWS = 0.2


class Ranks:
    """The ranks of a group, which find each other through a store, and watch each other over the group's connections."""

    def __init__(self, store: Any, own: int, names: List[int], group: Callable[[], Group]) -> None:
        """`names` are what errors call the ranks."""
        self.store, self.own, self.names, self.group = store, own, names, group

    def secret(self, purpose: str) -> bytes:
        """A secret of the group for a purpose."""
        return hmac.new(self.group().secret.encode(), purpose.encode(), hashlib.sha256).digest()

    @contextlib.contextmanager
    def watched(self, rank: int) -> Iterator[Tuple[int, str]]:
        """A connection that a rank closes when it ends or leaves the group, and the rank's host."""
        descriptor, host = self.group().connection(rank)
        try:
            yield descriptor, host
        finally:
            os.close(descriptor)

    def check(self, rank: int) -> None:
        """Fails if a rank has ended or left the group."""
        with self.watched(rank) as (descriptor, host):
            if _has_closed(descriptor, 0):
                raise self.lost(rank, host)

    def lost(self, rank: int, host: str) -> Failure:
        name = self.names[rank]
        return Failure(f"rank {name} on {host} is lost: its process exited or was killed", LOST, name)

    def late(self, rank: int, host: str, seconds: float) -> Failure:
        name = self.names[rank]
        text = f"rank {name} on {host} did not arrive within {seconds:g} s: it hangs, waits in another call, is cut off, or needs a longer timeout"
        return Failure(text, TIMED_OUT, name)


class Link:
    """The connection for messages from a rank to another, one of which is this rank."""

    def __init__(self, ranks: Ranks, source: int, to: int) -> None:
        self.ranks, self.source, self.to = ranks, source, to
        self.other = to if source == ranks.own else source
        self._name = f"messages from {source} to {to}"
        self._pair: Optional[Pair] = None
        # Not 0 once nothing is to be waited for.
        self._is_canceled = c_int32(0)

    def pair(self, timeout: float) -> Pair:
        """The two ranks, connected in the first call. Only one thread at a time asks for them."""
        if self._pair is None:
            self._check_open()
            self._pair = self._connect(timeout)
            if self._is_canceled.value:
                self._pair.cancel()
        return self._pair

    def connected(self) -> Optional[Pair]:
        """The two ranks, if they are connected."""
        return self._pair

    def is_offered(self) -> bool:
        """Whether the rank that sends waits for this one to connect, or they are connected. Fails if that rank is lost."""
        if self._pair is not None:
            return True
        self.ranks.check(self.other)
        try:
            return bool(self.ranks.store.check([self._key()]))
        except RuntimeError as error:
            raise _store_failure(error) from None

    def cancel(self) -> None:
        """Ends what waits for the other rank, and all later calls."""
        self._is_canceled.value = 1
        if self._pair is not None:
            self._pair.cancel()

    def close(self) -> None:
        """Closes the connection. No call runs."""
        self._is_canceled.value = 1
        if self._pair is not None:
            self._pair.close()

    def release(self) -> None:
        if self._pair is not None:
            self._pair.release()

    def _check_open(self) -> None:
        if self._is_canceled.value:
            raise closed()

    def _connect(self, timeout: float) -> Pair:
        ranks, store, key = self.ranks, self.ranks.store, self._key()
        with ranks.watched(self.other) as (watched, host):
            rest = ranks.secret(self._name), host, timeout, watched, self._is_canceled
            names = ranks.names[self.source], ranks.names[self.to]
            try:
                if self.source != ranks.own:
                    return Pair(names, None, self._address(store, key, watched, host, timeout), *rest)
                listener, address = listen(store, 8)
                with listener:
                    place = address, listener.getsockname()[1]
                    store.set(key, json.dumps(place))
                    try:
                        return Pair(names, listener.detach(), place, *rest)
                    finally:
                        forget(store, key)
            except OSError as error:
                raise Failure(f"this rank cannot listen for rank {ranks.names[self.other]}: {error}", ENVIRONMENT, None) from None
            except RuntimeError as error:
                # The store ends with the rank that has it.
                if _has_closed(watched, _NEWS):
                    raise ranks.lost(self.other, host) from None
                raise _store_failure(error) from None

    def _key(self) -> str:
        """Where the store has the sender's address. Nothing that another group has left there has the same key."""
        return f"mpienv/{self.ranks.secret('name').hex()[:16]}/{self._name}"

    def _address(self, store: Any, key: str, watched: int, host: str, timeout: float) -> Tuple[str, int]:
        """Where the other rank listens. It asks again and again: waiting would keep other threads from the store."""
        deadline, pause = time.monotonic() + timeout, 0.001
        while not store.check([key]):
            if self._is_canceled.value:
                raise Failure("the call was canceled by another thread of this process", CANCELED, None)
            if time.monotonic() > deadline:
                raise self.ranks.late(self.other, host, timeout)
            if _has_closed(watched, pause):
                raise self.ranks.lost(self.other, host)
            pause = min(2 * pause, 0.02)
        address, port = json.loads(store.get(key))
        return address, port


def _store_failure(error: RuntimeError) -> Failure:
    return Failure(f"PyTorch's store, which carries addresses, cannot be used: {error}", ENVIRONMENT, None)


def _has_closed(descriptor: int, seconds: float) -> bool:
    """Whether the other end closes a connection within some seconds."""
    poll = select.poll()
    # What has arrived may never be read.
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(max(0, round(1000 * seconds))))
