"""Connects a group of ranks that share a store: the first rank listens, and publishes its address and a secret."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import time
from typing import Any, List, Optional, Sequence, Tuple

from ._library import Failure, Group

# An address that documentation uses. Nothing is sent to it: the system says which route it would take.
_ELSEWHERE = "192.0.2.1"


def connect(store: Any, key: str, rank: int, size: int, timeout: float) -> Group:
    """Connects the ranks that call this with the same key."""
    if size == 1:
        return Group(0, 1, None, "127.0.0.1", 1, "", timeout)
    deadline = time.monotonic() + timeout
    if rank != 0:
        host, port, secret = json.loads(_wait(store, key, deadline, timeout))
        return Group(rank, size, None, host, port, secret, timeout)
    listener, host = listen(store, max(128, size))
    with listener:
        port, secret = listener.getsockname()[1], secrets.token_hex(32)
        store.set(key, json.dumps([host, port, secret]))
        try:
            return Group(0, size, listener.detach(), host, port, secret, timeout)
        finally:
            # All ranks have read it, or never will. A later group of the same name does not find it.
            forget(store, key)


def listen(store: Any, waiting: int) -> Tuple[socket.socket, str]:
    """A socket at which other ranks can reach this one, and the address of its host."""
    host, bind = _own_address(store)
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((bind, 0))
        listener.listen(waiting)
    except BaseException:
        listener.close()
        raise
    return listener, host


def forget(store: Any, key: str) -> None:
    """Removes a key. The store may have ended with the rank that has it."""
    try:
        store.delete_key(key)
    except RuntimeError:
        pass


def _wait(store: Any, key: str, deadline: float, timeout: float) -> str:
    """What the store has for a key."""
    if missing(store, [key], deadline - time.monotonic()):
        text = f"rank 0 of the group did not publish its address within {timeout:g} s: it hangs or was never started"
        raise Failure(text, 3, 0)
    found: str = store.get(key).decode()
    return found


def missing(store: Any, keys: Sequence[str], seconds: float) -> List[str]:
    """The keys that the store does not have within some seconds. It asks again and again: waiting would keep other threads from it."""
    deadline, pause, left = time.monotonic() + seconds, 0.001, list(keys)
    while True:
        left = [key for key in left if not store.check([key])]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _own_address(store: Any) -> Tuple[str, str]:
    """This host as the other ranks reach it, and the address to listen on."""
    master = _master(store) or socket.gethostname()
    own = _route_to(master)
    if own is not None and not _is_loopback(own):
        return own, own
    if own is not None and (master == "localhost" or _is_loopback(master)):
        return own, own
    if _master(store) and own is not None:
        # The host knows itself by a loopback address, and others know it by its name.
        return master, "::" if ":" in own else "0.0.0.0"
    own = _route_to(_ELSEWHERE) or "127.0.0.1"
    return own, own


def _master(store: Any) -> Optional[str]:
    """The host of the store, or else that of the first rank of the job."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR", "").strip() or None


def _route_to(host: str) -> Optional[str]:
    """The address of this host that packets to another host carry."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as route:
                route.connect(address)
                return str(route.getsockname()[0])
        except OSError:
            continue
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
