"""A process's place in a cluster under any launcher: rank, world size, local rank, and the master's address.

The command ``mpienv``, which this package brings, reads the variables of the launcher. It runs in the first call, and
not again while the process and its environment stay the same.

>>> import mpienv_rs as mpienv
>>> info = mpienv.info()
>>> info.rank, info.world_size, info.is_main
(0, 1, True)
"""

from __future__ import annotations

import functools
import importlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from ._command import Error, find_command

__all__ = ["Error", "Finding", "Info", "export", "find_command", "heartbeat", "info", "init_process_group"]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        """``__version__``, which takes longer to find than all else to import."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module("importlib.metadata").version("mpienv-rs")


# Ranks that differ in one of these cannot meet, or use the same device. A program that sets one sets these others, too.
_PLACE = {
    "RANK": ("WORLD_SIZE",),
    "WORLD_SIZE": ("RANK",),
    "LOCAL_RANK": (),
    "LOCAL_WORLD_SIZE": ("LOCAL_RANK",),
    "NODE_RANK": ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "MASTER_ADDR": (),
    "MASTER_PORT": ("MASTER_ADDR",),
}

# A process, and the environment of which the command is asked there.
_Asked = Tuple[int, FrozenSet[Tuple[str, str]]]

# What `export` has set: the values before and after. ``None`` is a variable that is not set.
_exported: Dict[str, Tuple[Optional[str], Optional[str]]] = {}
# While `export` changes the environment and the above, no other thread reads them, and no process
# is forked.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
# The port of a process that is alone, which the command draws anew in each run.
_ports: Dict[int, int] = {}


@dataclass(frozen=True)
class Finding:
    """Something suspicious in the environment: what, why it matters, and the remedy."""

    severity: str
    """``error``, ``warning`` or ``note``."""
    code: str
    what: str
    why: str
    remedy: str


class _Sources(Dict[str, str]):
    """A dict that nothing changes. MappingProxyType cannot be hashed, copied, pickled or made JSON."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the sources of a place cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        return _Sources, (dict(self),)


@dataclass(frozen=True)
class Info:
    """The place of this process. What the launcher does not tell is ``None``, never guessed."""

    launcher: str
    rank: int
    world_size: int
    local_rank: Optional[int]
    local_world_size: Optional[int]
    node_rank: Optional[int]
    num_nodes: Optional[int]
    master_addr: Optional[str]
    """``None`` if the job may have several nodes and nothing names the host of rank 0."""
    master_port: int
    device_index: Optional[int]
    """The number of this rank's device among those that it sees: for ``torch.cuda.set_device``."""
    restart_count: Optional[int]
    """How often the job was restarted."""
    hosts: Optional[Tuple[str, ...]]
    """The hosts in the order of their nodes."""
    sources: Mapping[str, str]
    """Where each value comes from: a variable, or a rule in words."""
    findings: Tuple[Finding, ...]

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def info(*, quiet: bool = False) -> Info:
    """The place of this process.

    The first call prints what is probably wrong on stderr, once on each node: for example that this is a batch script,
    whose processes srun has not started. ``quiet=True`` silences it, and the variable ``MPIENV_QUIET=1`` silences all but
    errors. `Info.findings` has what it prints in any case.

    >>> place = info()
    >>> print(f"rank {place.rank} of {place.world_size}, started by {place.launcher}: {place.sources['rank']}")
    rank 0 of 1, started by alone: no launcher gives this process a place

    The place is that of the present environment: a worker process sets its variables before this call, whatever the
    process was before. What `export` itself has set does not count.

    Raises `Error` with the text of the command if the launcher's variables contradict each other.
    """
    place, warnings, _ = _place(_asked())
    if not quiet:
        _warn(warnings)
    return place


@functools.lru_cache(maxsize=None)
def _warn(text: str) -> None:
    """Prints the command's warnings; the cache makes it once in a process."""
    if text and sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _own() -> Dict[str, Optional[str]]:
    """The variables that are still as `export` has left them, with their values before."""
    own = {name: before for name, (before, after) in _exported.items() if os.environ.get(name) == after}
    for name, others in _PLACE.items():
        # RANK=0 WORLD_SIZE=2 after `export` has set RANK=0 WORLD_SIZE=1: the program has set both.
        if name in _exported and os.environ.get(name) not in (None, _exported[name][1]):
            for other in others:
                own.pop(other, None)
    return own


def _asked() -> _Asked:
    """This process, and its environment without what `export` has set."""
    with _lock:
        variables: Dict[str, Optional[str]] = {**os.environ, **_own()}
    return os.getpid(), frozenset((name, value) for name, value in variables.items() if value is not None)


@functools.lru_cache(maxsize=16)
def _place(asked: _Asked) -> Tuple[Info, str, Dict[str, Any]]:
    """The place, the command's warnings about it, and all that the command shows."""
    shown, warnings = _ask(asked, "show", "--json", "--warn")
    if shown["provenance"].get("master_port", "").startswith("derived from this process"):
        shown["master_port"] = _ports.setdefault(asked[0], shown["master_port"])
    hosts: Optional[List[str]] = shown.get("hosts")
    keys = ("severity", "code", "what", "why", "remedy")
    place = Info(
        launcher=shown["launcher"],
        rank=shown["rank"],
        world_size=shown["world_size"],
        local_rank=shown["local_rank"],
        local_world_size=shown["local_world_size"],
        node_rank=shown["node_rank"],
        num_nodes=shown["node_count"],
        master_addr=shown["master_addr"],
        master_port=shown["master_port"],
        device_index=shown["device_index"],
        restart_count=shown["restart_count"],
        hosts=None if hosts is None else tuple(hosts),
        sources=_Sources(shown["provenance"]),
        findings=tuple(Finding(**{key: finding[key] for key in keys}) for finding in shown["findings"]),
    )
    return place, warnings, shown


def export(overwrite: bool = False, *, quiet: bool = False) -> Info:
    """Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the like in ``os.environ``, and returns the place.

    A variable that is already set keeps its value. If the value is of another place than this one, that is an `Error`.
    With ``overwrite=True`` all variables are set. Variables that would make PyTorch hang are removed. GLOO_SOCKET_IFNAME is
    set as `mpienv exec` sets it, if gloo would use a loopback address on several nodes. Prints warnings as `info` does.

    >>> _ = export()
    >>> os.environ["RANK"], os.environ["WORLD_SIZE"]
    ('0', '1')
    """
    with _lock:
        return _export(overwrite, quiet, "export")


def _export(overwrite: bool, quiet: bool, caller: str) -> Info:
    asked, own = _asked(), _own()
    place, before = _place(asked)[0], dict(asked[1])
    # The command asks the launcher where nothing names the master, so the place is not complete before.
    is_complete = place.master_addr is not None
    if is_complete:
        info(quiet=quiet)
    variables = dict(_variables(asked))
    if is_complete and variables.get("MASTER_PORT"):
        # Where the process is alone, the command has drawn another.
        variables["MASTER_PORT"] = str(place.master_port)
    if not overwrite:
        differing = {}
        for name in _PLACE:
            value, old = variables.get(name), before.get(name, "").strip()
            if name not in own and value is not None and old not in ("", value):
                differing[name] = f"{name} is {old!r}, and mpienv finds {value!r}"
        if differing:
            # A variable that agrees on this rank may differ on another.
            stale = {*differing, *(other for name in differing for other in _PLACE[name])}
            names = " and ".join(name for name in _PLACE if name in stale and before.get(name))
            # Where launchers disagree, overwriting may leave each process in a job of its own.
            disagree = (found for found in place.findings if found.code == "launchers-disagree")
            remedies = [f"{found.what}; {found.remedy}" for found in disagree if found.severity == "warning"]
            remedies = remedies or [f"unset {names}, or call {caller}(overwrite=True)"]
            raise Error("; ".join([*differing.values(), *remedies]))
    exported = {
        name: (before.get(name), value)
        for name, value in variables.items()
        if value is None or overwrite or name in own or not before.get(name, "").strip()
    }
    for name in {**own, **exported}:
        value = exported[name][1] if name in exported else before.get(name)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if not is_complete:
        # What the launcher has said stays: it answers only when all ranks ask.
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            exported.pop(name, None)
    _exported.clear()
    _exported.update(exported)
    return place if is_complete else info(quiet=quiet)


def init_process_group(
    backend: Optional[str] = None, *, overwrite: bool = False, quiet: bool = False, **options: Any
) -> Info:
    """Calls `export`, then ``torch.distributed.init_process_group(backend, **options)``, and returns the place.

    Before that, as ``mpienv exec`` does, it lets the process use all cores if Open MPI bound it to fewer by default, and
    it calls ``torch.set_num_threads`` with this rank's share of the node's cores. The number stays if the user has set
    OMP_NUM_THREADS or MKL_NUM_THREADS. ``MPIENV_THREADS`` asks for a number, or to ``keep`` both as they are. Call
    ``torch.set_num_threads`` after this function to choose another number.

    Rank 0's store listens on the master's address alone, if that is an address of rank 0's host. PyTorch's own listens on
    every address. This function leaves the store to PyTorch if torchrun started the ranks, if the name of the master has
    several addresses, and if you pass ``init_method``, ``store``, ``rank`` or ``world_size``.

    With ``store`` or an ``init_method`` such as ``tcp://HOST:PORT``, it passes PyTorch the rank and
    the world size of the place.

    If ``rank`` or ``world_size`` differs from the place, that is an `Error`, and nothing is set. Without a launcher, as in
    ``torch.multiprocessing.spawn``, set RANK, WORLD_SIZE and MASTER_ADDR in ``os.environ`` instead.

    It is an `Error` too if this process would be the only rank although it is probably one of several, as in a batch
    script without srun. MPIENV_LAUNCHER=alone allows it.

    PyTorch is imported here, and nowhere else in this package.
    """
    found = info(quiet=True)
    for name in ("rank", "world_size"):
        passed, value = options.get(name), getattr(found, name)
        # PyTorch's own default is -1.
        if passed not in (None, -1, value):
            raise Error(
                f"{name} is {passed!r} in the call of init_process_group, and mpienv finds {value!r} "
                f"({found.sources[name]}); leave out rank and world_size, and if no launcher has started this process, "
                "set RANK, WORLD_SIZE and MASTER_ADDR in os.environ before the call"
            )
    refused = _place(_asked())[2]["refused"]
    if refused is not None:
        raise Error(refused)
    silent = quiet or any(os.environ.get(name) for name in ("MPIENV_QUIET", "MPIENV_LAUNCHER"))
    parent = importlib.import_module("multiprocessing").parent_process()
    if parent and not silent and "world_size" not in options and _is_inherited(found, parent.pid):
        _warn(
            "warning: multiprocessing has started this process, and its place is its parent's, "
            f"rank {found.rank} of {found.world_size}: if the parent has started others, each of "
            "them has this place too; set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and "
            "MASTER_ADDR in os.environ before the call, or MPIENV_LAUNCHER=alone for a process by "
            "itself; quiet=True silences this\n"
        )
    with _lock:
        place = _export(overwrite, quiet, "init_process_group")
    threads = _place(_asked())[2]["threads"]
    if os.environ.get("MPIENV_THREADS", "").strip() != "keep":
        _use_cores(threads["cpus"])
    distributed = importlib.import_module("torch.distributed")
    if threads["number"] is not None and not os.environ.get("MKL_NUM_THREADS", "").strip():
        importlib.import_module("torch").set_num_threads(threads["number"])
    if _opens_store(distributed, backend, options):
        options = {**options, "init_method": _own_scheme(distributed)}
    elif _needs_place(options):
        options = {**options, "rank": place.rank, "world_size": place.world_size}
    if "mpienv" in str(backend):
        # Before PyTorch 2.14, only this registers it.
        importlib.import_module("mpienv_rs.torch")
    distributed.init_process_group(backend, **options)
    return place


def heartbeat() -> None:
    """Shows that this rank makes progress although it prints nothing.

    ``mpienv launch --stall-timeout TIME`` ends a job none of whose ranks has printed anything or called this function for
    that time. Anywhere else, it does nothing. It takes some microseconds, so that a training loop may call it in each step.
    If it cannot reach the launch, for example from a container, it warns once on stderr.

    >>> for step in range(3):
    ...     heartbeat()
    """
    path = os.environ.get("MPIENV_HEARTBEAT_FILE")
    if not path:
        return
    try:
        # In another PID namespace, the path may be that of another program's file.
        if path.startswith("/proc/") and "memfd:mpienv" not in os.readlink(path):
            why = "which is not the file of the launch"
        else:
            os.utime(path)
            return
    except OSError as error:
        why = f"which cannot be touched ({error.strerror})"
    if os.environ.get("MPIENV_QUIET", "") in ("", "0"):
        _warn(
            f"warning: MPIENV_HEARTBEAT_FILE is {path!r}, {why}: heartbeats do nothing, so that a silent job may be stopped; "
            "start this program in the PID namespace of `mpienv launch`, or unset the variable\n"
        )


def _is_inherited(place: Info, parent: int) -> bool:
    """Whether this process has its parent's place, and neither of them has set it for this one."""
    now, start = dict(_asked()[1]), _started(os.getpid())
    if any(now.get(name) != start.get(name) for name in ("RANK", "WORLD_SIZE")):
        return False
    try:
        # What the parent has set since its start may be the place that it gives this process.
        around = _place((parent, frozenset(_started(parent).items())))[0]
    except Error:
        return False
    return (place.rank, place.world_size) == (around.rank, around.world_size)


def _started(process: int) -> Dict[str, str]:
    """The environment with which a process started; empty where the system does not show it."""
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _opens_store(distributed: Any, backend: Optional[str], options: Mapping[str, Any]) -> bool:
    """Whether the ranks meet at a store that this module opens: the same on all ranks."""
    asked = any(options.get(name) is not None for name in ("init_method", "store", "rank", "world_size"))
    # The agent of torchrun has opened the store. With MPI there is none.
    other = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or backend in ("mpi", "fake")
    # PyTorch before 2.1 takes no socket.
    made = getattr(getattr(distributed, "TCPStore", None), "__init__", None)
    takes_socket = "master_listen_fd" in (getattr(made, "__doc__", None) or "")
    return takes_socket and not asked and not other and os.environ.get("USE_LIBUV", "1") == "1"


def _needs_place(options: Mapping[str, Any]) -> bool:
    """Whether PyTorch takes the rank and the world size from the call, not the variables."""
    method = str(options.get("init_method") or "env://")
    # PyTorch refuses two ranks: one in the URL and one in the call.
    is_in_url = "rank=" in method or "world_size=" in method
    return options.get("store") is not None or not (method.startswith("env://") or is_in_url)


@functools.lru_cache(maxsize=None)
def _own_scheme(distributed: Any) -> str:
    """Teaches PyTorch to meet as ``env://`` does, but with a store that listens on the master's address alone."""

    def handler(url: str, timeout: Any, **_: Any) -> Iterator[Tuple[Any, int, int]]:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        listening = _listen(host, port) if rank == 0 else None
        # PyTorch closes the socket together with the store.
        number = None if listening is None else listening.detach()
        # In PyTorch 2.4, the kind of store that is the default takes no socket.
        version = getattr(importlib.import_module("torch"), "__version__", "")
        kind = {"use_libuv": False} if version.startswith("2.4.") else {}
        store = distributed.TCPStore(
            host, port, size, rank == 0, timeout=timeout, multi_tenant=True, master_listen_fd=number, **kind
        )
        yield store, rank, size
        raise RuntimeError("mpienv:// cannot meet again")

    distributed.register_rendezvous_handler("mpienv", handler)
    return "mpienv://"


def _listen(host: str, port: int) -> Optional[socket.socket]:
    """A socket at the address of the master; ``None`` if other ranks may know the master by another address."""
    try:
        found = {(entry[0], entry[4]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if len(found) != 1:
        return None
    family, address = found.pop()
    text = str(address[0])
    # Debian resolves a host's own name to 127.0.1.1, which other hosts cannot use.
    if ipaddress.ip_address(text.partition("%")[0]).is_loopback and host not in (text, "localhost"):
        return None
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        # It is not an address of this host, or the port is in use, of which PyTorch's own error tells more.
        listening.close()
        return None
    return listening


def _use_cores(cpus: Optional[List[int]]) -> None:
    """Lets this process use these processors, if they are more than it uses."""
    if sys.platform != "linux" or cpus is None:
        return
    before = os.sched_getaffinity(0)
    if not before < set(cpus):
        return
    # The mask belongs to a thread, and libraries may have started some.
    for thread in os.listdir("/proc/self/task"):
        try:
            if os.sched_getaffinity(int(thread)) == before:
                os.sched_setaffinity(int(thread), cpus)
        except OSError:
            # The thread has ended, or the system forbids it: the binding stays.
            pass


@functools.lru_cache(maxsize=16)
def _variables(asked: _Asked) -> Dict[str, Optional[str]]:
    """What `export` sets; ``None`` is to be removed."""
    # As `mpienv exec` does, unless the user asks for an interface.
    interface = [] if os.environ.get("MPIENV_INTERFACE", "").strip() else ["--interface", "default"]
    # `info` prints the warnings.
    variables: Dict[str, Optional[str]] = _ask(asked, "export", "--quiet", "--shell", "json", *interface)[0]
    return variables


def _launcher() -> Tuple[int, ...]:
    """The connection to the launcher, which the command asks for the host of rank 0."""
    number = os.environ.get("PMI_FD", "")
    try:
        os.fstat(int(number))
    except (OSError, ValueError, OverflowError):
        return ()
    return (int(number),)


def _ask(asked: _Asked, *words: str) -> Tuple[Any, str]:
    """What the command answers as JSON, and what it prints on stderr."""
    command = [find_command(), *words]
    try:
        answer = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
            env=dict(asked[1]),
            pass_fds=_launcher(),
        )
    except OSError as error:
        raise Error(f"cannot start {command[0]}: {error}; install mpienv-rs again") from error
    # Where SIGCHLD is ignored, Python cannot learn how the command ended, and takes it for success.
    if answer.returncode != 0 or not answer.stdout:
        text = answer.stderr.strip()
        prefix = "mpienv: "
        raise Error(text[len(prefix) :] if text.startswith(prefix) else text)
    return json.loads(answer.stdout), answer.stderr
