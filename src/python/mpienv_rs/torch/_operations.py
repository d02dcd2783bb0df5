"""PyTorch's operations by the calls of a group, for the process groups of all versions of PyTorch."""

from __future__ import annotations

import atexit
import datetime
import functools
import os
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReduceOp
from torch.autograd import graph

from . import _sparse
from ._calls import Call, Calls
from ._library import LOST, REFUSED, TIMED_OUT, Failure, Group, closed, pieces
from ._links import Ranks
from ._meeting import connect, forget, missing
from ._messages import Messages
from ._tensors import KINDS, WIDER, Place, check, meant, moved, plain, typed

_REDUCTIONS = {
    int(ReduceOp.SUM): b"sum",
    int(ReduceOp.AVG): b"mean",
    int(ReduceOp.MIN): b"min",
    int(ReduceOp.MAX): b"max",
    int(ReduceOp.PRODUCT): b"product",
}
_BITWISE = {
    int(ReduceOp.BAND): torch.bitwise_and,
    int(ReduceOp.BOR): torch.bitwise_or,
    int(ReduceOp.BXOR): torch.bitwise_xor,
}
# How ranks call the bitwise operations, which are built of other calls.
_BUILT = dict(zip(_BITWISE, ("{} (band)", "{} (bor)", "{} (bxor)")))

_KEY = "mpienv"
# Where the store has how many calls the ranks did not make because of their arguments, and why the last of them.
_REFUSALS, _REFUSAL = "mpienv/refusals", "mpienv/refused"
# How many bytes the backward pass reduces itself, if the other ranks come within so many microseconds.
_SHORT, _MOMENT = 128 << 10, 200
_BACKWARD = graph._engine_run_backward.__code__
_NO_TIMEOUT = datetime.timedelta(0)
_OPEN: weakref.WeakSet[Operations] = weakref.WeakSet()
# How many seconds after a failure of another rank this one ends, so that the other one ends first.
_LATER = 1.0


class _Channel:
    """A group with the order of its calls."""

    def __init__(self, name: str, connect_group: Callable[[], Group]) -> None:
        self.calls = Calls(name, interrupted=self._end_by)
        self._connect: Optional[Callable[[], Group]] = connect_group
        self._group: Optional[Group] = None
        self._is_closed = False

    def group(self, timeout: Optional[float] = None) -> Group:
        """The group, connected in the first call, which then waits so long for a rank. Only the thread that makes a call asks for it."""
        if self._group is None:
            if self._is_closed or self._connect is None:
                raise closed()
            self._group = self._connect()
        if timeout is not None:
            self._group.wait_within(timeout)
        return self._group

    def cancel(self) -> None:
        self._is_closed = True
        if self._group is not None:
            self._group.cancel()

    def _end_by(self, error: BaseException) -> None:
        """Ends the group after what a signal's handler has raised."""
        if self._group is None:
            self.cancel()
        else:
            self._group.end_by(error)

    def close(self) -> None:
        if self._is_closed and self._group is None:
            # It is canceled, and may still wait for the other rank to connect.
            return
        if self.calls.is_inside():
            # A signal's handler closes the group during a call, which keeps it until it ends.
            self.cancel()
            self.calls.close()
            return
        self.calls.close()
        # What an error keeps of the group must not keep the store open.
        self._is_closed, self._connect = True, None
        if self._group is not None:
            self._group.close()

    def is_busy(self) -> bool:
        return self.calls.is_busy()

    def release(self) -> None:
        if self._group is not None:
            self._group.release()


class _Reduce:
    """Reduces a tensor that the library takes as it is."""

    def __init__(self, tensor: Any, kind: int, by: bytes, root: int) -> None:
        # A call that waits for its turn keeps the tensor, also if a signal's handler has ended the
        # wait for it.
        self._tensor = tensor
        self._values = tensor.data_ptr(), tensor.nbytes
        self._kind, self._by, self._root = kind, by, root
        self.is_short = self._values[1] <= _SHORT

    def __call__(self, group: Group) -> None:
        group.reduce(self._values, self._kind, self._by, self._root)

    def begin(self, group: Group) -> int:
        return group.begin_reduce(self._values, self._kind, self._by, _MOMENT)

    def end(self, group: Group) -> None:
        group.end_reduce(self._values, self._kind, self._by)


class Operations:
    """A group of PyTorch's on CPUs, over mpienv."""

    _done: Any = None
    _is_closed = False
    # When a call of any group last failed because of another rank.
    _failed_at = -_LATER

    def _start(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, ranks: Sequence[int]) -> None:
        """Connects the group. `ranks` are those of the job; a group of all ranks may have none."""
        self._store: Any = store
        self._own, self._size = rank, size
        self._timeout = timeout
        # The ranks of the job, if the group has others of its own.
        self._ranks = None if list(ranks) in ([], list(range(size))) else list(ranks)
        self._process = os.getpid()
        # The code of the last failure.
        self._failure = 0
        # How many calls this rank did not make because of their arguments, and why the last of them.
        self._refused, self._refusal = 0, ""
        self._number = self._monitored = 0
        self._lock = threading.Lock()
        self._channel = _Channel("mpienv", lambda: connect(store, _KEY, rank, size, timeout.total_seconds()))
        members = Ranks(store, rank, list(ranks) or list(range(size)), self._channel.group)
        self._secret = members.secret
        # They wait for no other call.
        self._messages = Messages(members)
        self._done = _done()
        self._make("init_process_group", lambda group: None, timeout.total_seconds())
        _OPEN.add(self)

    # What PyTorch asks of a group.

    def getBackendName(self) -> str:
        return "mpienv"

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._set_default_timeout(timeout)

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def describe(self) -> str:
        """What carries the calls: shared memory or TCP, and why."""
        return self._channel.group().describe()

    def shutdown(self) -> None:
        """Waits for the calls that were begun, but not for messages that have not come, and closes the group."""
        self._close()

    def abort(self) -> None:
        """Ends the calls that run, here and on the other ranks, and closes the group."""
        if self._process == os.getpid():
            for channel in self._channels():
                channel.cancel()
        self._close()

    def leave(self) -> None:
        """Closes the group without waiting for another rank."""
        self.abort() if any(channel.is_busy() for channel in self._channels()) else self.shutdown()

    def _channels(self) -> List[Any]:
        """Those of messages first, which watch the ranks over that of the group."""
        return [*self._messages.ways(), self._channel]

    def _close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._process == os.getpid():
            for channel in self._channels():
                channel.close()
            self._messages.close()
        self._store = None

    def __del__(self) -> None:
        # Not the whole of shutdown: the interpreter may end.
        if self._done is not None and not self._is_closed:
            self.shutdown()

    def release_in_child(self) -> None:
        """Closes the connections that a forked process has inherited, so that they end with this process's parent."""
        for channel in self._channels():
            channel.release()

    # Calls.

    def _begin(
        self, operation: str, opts: Any, make: Callable[[Group], Any], tensors: List[Any]
    ) -> Any:
        """Makes a call at once, or begins it, as the options say."""
        self._number += 1
        seconds = self._seconds(opts)
        if not getattr(opts, "asyncOp", True):
            self._make(operation, make, seconds)
            return self._done
        self._check_process(operation)
        return self._channel.calls.begin(self._checked(operation, make, seconds), tensors)

    def _seconds(self, opts: Any) -> float:
        """How long a call waits for another rank."""
        timeout = getattr(opts, "timeout", _NO_TIMEOUT)
        seconds: float = (timeout if timeout > _NO_TIMEOUT else self._timeout).total_seconds()
        return seconds

    def _checked(self, operation: str, make: Callable[[Group], Any], seconds: float) -> Callable[[], None]:
        """What makes a call, and fails with the errors that the program gets."""

        def call() -> None:
            try:
                with torch.no_grad():
                    make(self._channel.group(seconds))
            except Failure as failure:
                raise self._failed(operation, failure) from None
            except Exception as error:
                self._note_refusal(error)
                raise

        return call

    def _make(self, operation: str, make: Callable[[Group], Any], seconds: float) -> None:
        self._check_process(operation)
        try:
            self._channel.calls.make(lambda: make(self._channel.group(seconds)))
        except Failure as failure:
            raise self._failed(operation, failure) from None

    def _check_process(self, operation: str) -> None:
        if self._process != os.getpid():
            raise dist.DistBackendError(
                f"mpienv: {operation}: this process was forked from process {self._process}, which alone can use the "
                "group; call init_process_group after the fork, or start a new program instead of forking"
            )

    def _note_refusal(self, error: Exception) -> None:
        """Keeps why this rank did not make a call, or not to its end, for the errors of ranks that made it."""
        self._refused, self._refusal = self._refused + 1, f"; rank {self._own} had refused its call before: {error}"
        try:
            self._store.set(_REFUSAL, self._refusal)
            self._store.add(_REFUSALS, 1)
        except (dist.DistError, RuntimeError, AttributeError):
            # The rank with the store has ended, or the group is closed.
            pass

    def _refusal_of_some(self) -> str:
        """Why a rank did not make a call, unless all ranks have refused as many."""
        try:
            if self._store.add(_REFUSALS, 0) == self._refused * self._size:
                return ""
            text: str = self._store.get(_REFUSAL).decode()
            return text
        except (dist.DistError, RuntimeError, AttributeError):
            return self._refusal

    def _failed(self, operation: str, failure: Failure) -> Exception:
        text = f"{failure}"
        if failure.code == REFUSED:
            text += self._refusal_of_some()
        if self._ranks is not None and failure.rank is not None:
            text += f"; rank {failure.rank} of this group is rank {self._ranks[failure.rank]} of the job"
        return self._failed_as(operation, failure.code, text)

    def _failed_as(self, operation: str, code: int, text: str) -> Exception:
        self._failure = code
        if code in (LOST, REFUSED):
            Operations._failed_at = time.monotonic()
        return dist.DistBackendError(f"mpienv: {operation}: {text}")

    # Operations that reduce.

    def allreduce(self, tensors: List[Any], opts: Any) -> Any:
        if any(tensor.layout is not torch.strided for tensor in tensors):
            return self._allreduce_sparse(tensors, opts)
        reduce = self._reducing("all_reduce", tensors, opts, -1)
        if isinstance(reduce, _Reduce) and reduce.is_short and getattr(opts, "asyncOp", True) and _is_called_by_backward():
            return self._reduce_here(reduce, opts, tensors)
        return self._begin("all_reduce", opts, reduce, tensors)

    def _reduce_here(self, reduce: _Reduce, opts: Any, tensors: List[Any]) -> Any:
        """Reduces the gradients of DistributedDataParallel in this thread if the other ranks come at once.

        It waits for them in C++, for which another thread would otherwise have to wake, make the call and wake this one.
        """
        self._check_process("all_reduce")
        seconds = self._seconds(opts)
        try:
            begun = self._channel.calls.begin_here(
                lambda: reduce.begin(self._channel.group(seconds)),
                self._checked("all_reduce", lambda group: reduce.end(group), seconds),
                tensors,
            )
        except Failure as failure:
            return self._channel.calls.failed(self._failed("all_reduce", failure), tensors)
        if begun is False:
            return self._begin("all_reduce", opts, reduce, tensors)
        self._number += 1
        return _done(tensors) if begun is True else begun

    def _allreduce_sparse(self, tensors: List[Any], opts: Any) -> Any:
        _sparse.check("all_reduce", tensors, _reduction_of(opts))

        def add(group: Group) -> None:
            for tensor in tensors:
                group.agree("all_reduce (sparse)", tensor.numel(), _kind(tensor.dtype), tensor.dim())
                _sparse.add(tensor, self._size, lambda values, parts: self._gather_each(group, values, parts))

        return self._begin("all_reduce", opts, add, tensors)

    def allreduce_coalesced(self, tensors: List[Any], opts: Any) -> Any:
        return Operations.allreduce(self, tensors, opts)

    def reduce(self, tensors: List[Any], opts: Any) -> Any:
        reduce = self._reducing("reduce", tensors, opts, opts.rootRank)
        return self._begin("reduce", opts, reduce, tensors)

    def _reducing(self, operation: str, tensors: List[Any], opts: Any, root: int) -> Callable[[Group], Any]:
        """What reduces tensors in place."""
        number = _reduction_of(opts)
        by = _REDUCTIONS.get(number)
        if len(tensors) == 1 and by is not None:
            # The usual case, as directly as possible.
            tensor = tensors[0]
            kind = KINDS.get(tensor.dtype)
            if kind is not None and tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_neg():
                return _Reduce(tensor, kind, by, root)
        for tensor in tensors:
            check(operation, tensor, is_result=True)
            _check_reduction(operation, tensor, number)

        def reduce(group: Group) -> None:
            for tensor in tensors:
                if by is None:
                    group.agree(_BUILT[number].format(operation), tensor.numel(), _kind(tensor.dtype), max(root, 0))
                self._reduce_in_place(group, tensor, number, root)

        return reduce

    def _reduce_in_place(self, group: Group, tensor: Any, number: int, root: int) -> None:
        place = Place(tensor, WIDER.get(tensor.dtype))
        by = _REDUCTIONS.get(number)
        values = torch.view_as_real(place.tensor) if place.tensor.is_complex() else place.tensor
        if by is None:
            self._reduce_bits(group, values, _BITWISE[number])
        else:
            buffer, kind = moved(values)
            group.reduce(buffer, kind | meant(tensor.dtype), by, root)
        if root in (-1, self._own):
            place.put_back()

    def _reduce_bits(self, group: Group, values: Any, combine: Callable[..., Any]) -> None:
        """Reduces by an operation that the library does not have: every rank gets all numbers."""
        rows = values.new_empty((self._size, values.numel()))
        self._gather_into(group, values, list(rows), -1)
        for row in rows[1:]:
            combine(rows[0], row, out=rows[0])
        values.view(-1).copy_(rows[0])

    def reduce_scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any) -> Any:
        number = _reduction_of(opts)
        for output, parts in zip(outputs, inputs):
            _check_parts("reduce_scatter", parts, self._size, output.dtype)
            _check_counts("reduce_scatter", parts[self._own], output, 1)

        def reduce(group: Group) -> None:
            for output, parts in zip(outputs, inputs):
                self._reduce_parts(group, output, parts, number)

        return self._begin_reducing("reduce_scatter", outputs, opts, reduce)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Any:
        return Operations.reduce_scatter_single_coalesced(self, [output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Any:
        number = _reduction_of(opts)
        for output, values in zip(outputs, inputs):
            check("reduce_scatter", values)
            _check_counts("reduce_scatter", values, output, self._size)

        def reduce(group: Group) -> None:
            for output, values in zip(outputs, inputs):
                self._reduce_row(group, output, values, number)

        return self._begin_reducing("reduce_scatter", outputs, opts, reduce)

    def _begin_reducing(
        self, operation: str, outputs: List[Any], opts: Any, reduce: Callable[[Group], Any]
    ) -> Any:
        for output in outputs:
            check(operation, output, is_result=True)
            _check_reduction(operation, output, _reduction_of(opts))
        return self._begin(operation, opts, reduce, outputs)

    def _reduce_parts(self, group: Group, output: Any, parts: List[Any], number: int) -> None:
        if all(part.numel() == output.numel() for part in parts):
            self._reduce_row(group, output, torch.cat([part.reshape(-1) for part in parts]), number)
            return
        # Parts of different lengths: each rank is the root of its own.
        group.agree("reduce_scatter (uneven)", sum(part.numel() for part in parts), _kind(output.dtype), 0)
        for rank, part in enumerate(parts):
            values = plain(part).clone()
            self._reduce_in_place(group, values, number, rank)
            if rank == self._own:
                output.detach().copy_(values.view_as(output))

    def _reduce_row(self, group: Group, output: Any, values: Any, number: int) -> None:
        by = _REDUCTIONS.get(number)
        if by is None or output.dtype not in KINDS:
            values = plain(values).clone().reshape(-1)
            if by is None:
                group.agree(_BUILT[number].format("reduce_scatter"), values.numel(), _kind(values.dtype), 0)
            self._reduce_in_place(group, values, number, -1)
            part = values.view(self._size, -1)[self._own]
            output.detach().copy_(part.view_as(output))
            return
        values, place = plain(values).contiguous(), Place(output)
        (sent, kind), (into, _) = moved(values), moved(place.tensor)
        group.reduce_scatter(sent, into, kind, by)
        place.put_back()

    # Operations that move.

    def broadcast(self, tensors: List[Any], opts: Any) -> Any:
        root = opts.rootRank
        for tensor in tensors:
            check("broadcast", tensor, root != self._own)

        def move(group: Group) -> None:
            for tensor in tensors:
                self._broadcast_from(group, tensor, root)

        return self._begin("broadcast", opts, move, tensors)

    def _broadcast_from(self, group: Group, tensor: Any, root: int) -> None:
        place = Place(tensor)
        group.broadcast(*typed(place.tensor), root)
        if root != self._own:
            place.put_back()

    def allgather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Any:
        for parts, values in zip(outputs, inputs):
            check("all_gather", values)
            _check_parts("all_gather", parts, self._size, values.dtype, is_result=True)
            _check_counts("all_gather", parts[self._own], values, 1)

        def move(group: Group) -> None:
            for parts, values in zip(outputs, inputs):
                self._gather_parts(group, values, parts)

        return self._begin("all_gather", opts, move, [part for parts in outputs for part in parts])

    def allgather_coalesced(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Any:
        by_input = [[parts[index] for parts in outputs] for index in range(len(inputs))]
        return Operations.allgather(self, by_input, inputs, opts)

    def _gather_parts(self, group: Group, values: Any, parts: List[Any]) -> None:
        if all(part.numel() == values.numel() for part in parts):
            self._gather_into(group, values, parts, -1)
            return
        group.agree("all_gather (uneven)", sum(part.numel() for part in parts), _kind(values.dtype), 0)
        self._gather_each(group, values, parts)

    def _gather_each(self, group: Group, values: Any, parts: List[Any]) -> None:
        """Gathers parts that may have different lengths: each rank is the root of its own."""
        parts[self._own].detach().copy_(values.detach().reshape(parts[self._own].shape))
        for rank, part in enumerate(parts):
            self._broadcast_from(group, part, rank)

    def _gather_into(self, group: Group, values: Any, parts: List[Any], root: int) -> None:
        places, values = _apart(parts), plain(values).contiguous()
        sent, kind = typed(values)
        into = pieces([place.tensor.data_ptr() for place in places], values.nbytes)
        group.gather(sent, into, kind, root)
        for place in places:
            place.put_back()

    def all_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        return Operations.all_gather_single_coalesced(self, [output], [input], opts)

    def all_gather_single_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Any:
        for output, values in zip(outputs, inputs):
            check("all_gather", values)
            check("all_gather", output, is_result=True)
            _check_counts("all_gather", output, values, self._size)

        def move(group: Group) -> None:
            for output, values in zip(outputs, inputs):
                self._gather_row(group, output, values)

        return self._begin("all_gather", opts, move, outputs)

    def _gather_row(self, group: Group, output: Any, values: Any) -> None:
        place, values = Place(output), plain(values).contiguous()
        sent, kind = typed(values)
        first, length = place.tensor.data_ptr(), values.nbytes
        into = pieces([first + rank * length for rank in range(self._size)], length)
        group.gather(sent, into, kind, -1)
        place.put_back()

    def gather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Any:
        root, lists = opts.rootRank, outputs or [[] for _ in inputs]
        for parts, values in zip(lists, inputs):
            check("gather", values)
            _check_parts("gather", parts, self._size if root == self._own else len(parts), values.dtype, is_result=True)
            for part in parts:
                _check_counts("gather", part, values, 1)

        def move(group: Group) -> None:
            for parts, values in zip(lists, inputs):
                self._gather_into(group, values, parts, root)

        return self._begin("gather", opts, move, [part for parts in outputs for part in parts])

    def scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any) -> Any:
        root, lists = opts.rootRank, inputs or [[] for _ in outputs]
        for output, parts in zip(outputs, lists):
            check("scatter", output, is_result=True)
            _check_parts("scatter", parts, self._size if root == self._own else len(parts), output.dtype)
            for part in parts:
                _check_counts("scatter", part, output, 1)

        def move(group: Group) -> None:
            for output, parts in zip(outputs, lists):
                self._scatter_from(group, [output], parts, root)

        return self._begin("scatter", opts, move, outputs)

    def _scatter_from(self, group: Group, outputs: List[Any], parts: List[Any], root: int) -> None:
        parts, places = [plain(part).contiguous() for part in parts], _apart(outputs)
        _, kind = typed(places[0].tensor)
        length = places[0].tensor.nbytes
        into = pieces([place.tensor.data_ptr() for place in places], length)
        sent = pieces([part.data_ptr() for part in parts], length)
        group.scatter(sent, into, kind, root)
        for place in places:
            place.put_back()

    def alltoall(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Any:
        for parts in (outputs, inputs):
            _check_parts("all_to_all", parts, self._size, outputs[0].dtype if outputs else None, parts is outputs)
        _check_counts("all_to_all", inputs[self._own], outputs[self._own], 1)
        return self._begin("all_to_all", opts, lambda group: self._exchange(group, outputs, inputs), outputs)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: List[int], input_sizes: List[int], opts: Any
    ) -> Any:
        for tensor, sizes in ((output, output_sizes), (input, input_sizes)):
            check("all_to_all", tensor, tensor is output)
            _check_splits("all_to_all", tensor, sizes, self._size)
        own_parts = (_split(input, input_sizes, self._size), _split(output, output_sizes, self._size))
        _check_counts("all_to_all", own_parts[0][self._own], own_parts[1][self._own], 1)

        def move(group: Group) -> None:
            place, values = Place(output), plain(input).contiguous()
            outputs, inputs = _split(place.tensor, output_sizes, self._size), _split(values, input_sizes, self._size)
            self._exchange(group, outputs, inputs)
            place.put_back()

        return self._begin("all_to_all", opts, move, [output])

    def _exchange(self, group: Group, outputs: List[Any], inputs: List[Any]) -> None:
        """Sends a part to each rank, in pairs of ranks: no rank knows whether others have parts of one length."""
        own, size = self._own, self._size
        outputs[own].detach().copy_(inputs[own].detach().reshape(outputs[own].shape))
        for step in range(1, size):
            to, source = (own + step) % size, (own - step) % size
            values, place = plain(inputs[to]).contiguous(), Place(outputs[source])
            (sent, kind), (received, _) = typed(values), typed(place.tensor)
            group.pass_on(sent, to, received, source, kind)
            place.put_back()

    def barrier(self, opts: Any) -> Any:
        return self._begin("barrier", opts, lambda group: group.barrier(), [])

    def monitored_barrier(self, opts: Any, _: bool) -> None:
        """Tells every rank which ranks do not come in time. The ranks meet in the store, and the group goes on afterwards."""
        operation, self._monitored = "monitored_barrier", self._monitored + 1
        self._check_process(operation)
        seconds = (opts.timeout if opts.timeout >= datetime.timedelta(0) else self._timeout).total_seconds()
        # What another group has left there has other keys.
        of_group = self._secret("monitored").hex()[:16]
        key = f"mpienv/{of_group}/monitored/{self._monitored}/{{}}".format
        try:
            if self._own == 0:
                others = {key(rank): rank for rank in range(1, self._size)}
                late = [others[of_rank] for of_rank in missing(self._store, list(others), seconds)]
                text = self._late(late, seconds) if late else ""
                self._store.set(key("end"), text)
                for of_rank in others:
                    forget(self._store, of_rank)
            else:
                self._store.set(key(self._own), "")
                is_late = missing(self._store, [key("end")], seconds)
                text = self._late([0], seconds) if is_late else self._store.get(key("end")).decode()
        except (dist.DistError, RuntimeError) as error:
            raise self._failed_as(operation, LOST, f"PyTorch's store, in which the ranks meet, cannot be used: {error}") from None
        if text:
            raise self._failed_as(operation, TIMED_OUT, text)
        # The rank with the store must not end before the others have read it.
        self._make(operation, lambda group: group.barrier(), self._timeout.total_seconds())
        if self._own == 0:
            forget(self._store, key("end"))

    def _late(self, ranks: List[int], seconds: float) -> str:
        names = [str(self._ranks[rank] if self._ranks else rank) for rank in ranks]
        which, why = f"rank {names[0]}", "it hangs, waits in another call, is cut off, or needs"
        if len(names) > 1:
            which, why = f"ranks {', '.join(names)}", "they hang, wait in another call, are cut off, or need"
        return f"{which} did not arrive within {seconds:g} s: {why} a longer timeout"

    # Messages between two ranks.

    def send(self, tensors: List[Any], to: int, tag: int) -> Any:
        tensor = self._check_message("send", tensors, to, tag)
        return self._messages.send(tensor, to, tag, self._timeout.total_seconds(), self._message_failed("send"))

    def recv(self, tensors: List[Any], source: int, tag: int) -> Any:
        tensor = self._check_message("recv", tensors, source, tag)
        return self._messages.receive(tensor, source, tag, self._timeout.total_seconds(), self._message_failed("recv"))

    def recv_anysource(self, tensors: List[Any], tag: int) -> Any:
        tensor = self._check_message("recv", tensors, None, tag)
        return self._messages.receive_from_any(tensor, tag, self._timeout.total_seconds(), self._message_failed("recv"))

    def _check_message(self, operation: str, tensors: List[Any], other: Optional[int], tag: int) -> Any:
        """The tensor of a message with another rank, or with any."""
        self._check_process(operation)
        if len(tensors) != 1:
            raise ValueError(f"mpienv: {operation}: {len(tensors)} tensors for one message")
        check(operation, tensors[0], operation == "recv")
        if other is not None and (not 0 <= other < self._size or other == self._own):
            raise ValueError(f"mpienv: {operation}: rank {other} is not another rank of a group of {self._size}")
        if not 0 <= tag < 1 << 32:
            raise ValueError(f"mpienv: {operation}: the tag {tag} is negative")
        return tensors[0]

    def _message_failed(self, operation: str) -> Callable[[Failure], Exception]:
        """What makes the error of a message, which calls ranks by their numbers in the job."""
        return lambda failure: self._failed_as(operation, failure.code, f"{failure}")


def _kind(dtype: Any) -> int:
    """The type of a call that moves nothing."""
    return KINDS.get(dtype, KINDS[torch.uint8]) | meant(dtype)


def _apart(tensors: Sequence[Any]) -> List[Place]:
    """Places of tensors that share no memory, although the tensors may."""
    places: List[Place] = []
    ends: List[Tuple[int, int]] = []
    for tensor in tensors:
        place = Place(tensor)
        first, last = place.tensor.data_ptr(), place.tensor.data_ptr() + place.tensor.nbytes
        if any(first < other_last and other_first < last for other_first, other_last in ends):
            place.tensor = place.tensor.clone()
        ends.append((first, last))
        places.append(place)
    return places


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Lets other ranks learn that a call was not made, if its arguments are refused."""

    @functools.wraps(method)
    def call(self: Operations, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except (ValueError, RuntimeError) as error:
            if not isinstance(error, dist.DistBackendError):
                self._note_refusal(error)
            raise

    return call


for _name in (
    "allreduce", "reduce", "reduce_scatter", "reduce_scatter_single_coalesced", "broadcast", "allgather",
    "all_gather_single_coalesced", "gather", "scatter", "alltoall", "all_to_all_single",
):
    setattr(Operations, _name, _noting(getattr(Operations, _name)))


def _done(tensors: Any = None) -> Any:
    """The work of a call that has ended."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


def _is_called_by_backward() -> bool:
    """Whether PyTorch's C++ calls, in the backward pass, and not a hook in Python."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return frame is not None and frame.f_code is _BACKWARD


def _reduction_of(opts: Any) -> int:
    return int(getattr(opts.reduceOp, "op", opts.reduceOp))


def _check_reduction(operation: str, tensor: Any, number: int) -> None:
    if number in _REDUCTIONS:
        # Complex numbers travel as pairs, of which only sums and means are those of the numbers.
        is_pair = tensor.is_complex() and number in (int(ReduceOp.SUM), int(ReduceOp.AVG))
        is_there = tensor.dtype in KINDS or tensor.dtype in WIDER or is_pair
    else:
        is_there = number in _BITWISE and not tensor.is_floating_point() and not tensor.is_complex()
    if not is_there:
        name = str(ReduceOp.RedOpType(number)).rpartition(".")[2]
        remedy = "convert the tensor, or use the backend gloo for this group"
        if number == int(ReduceOp.PREMUL_SUM):
            remedy = "multiply the tensor, and reduce it by SUM"
        raise RuntimeError(f"mpienv: {operation} does not reduce {tensor.dtype} by {name}; {remedy}")


def _check_parts(operation: str, parts: Sequence[Any], ranks: int, dtype: Any, is_result: bool = False) -> None:
    """Fails unless a list has a tensor of this type for each rank, and the library can read them."""
    if len(parts) != ranks:
        raise ValueError(f"mpienv: {operation}: {len(parts)} tensors for {ranks} ranks")
    for part in parts:
        check(operation, part, is_result)
        if part.dtype != dtype:
            raise ValueError(f"mpienv: {operation}: tensors of {part.dtype} and {dtype}")


def _check_counts(operation: str, all_parts: Any, part: Any, ranks: int) -> None:
    if all_parts.dtype != part.dtype:
        raise ValueError(f"mpienv: {operation}: tensors of {all_parts.dtype} and {part.dtype}")
    if all_parts.numel() != ranks * part.numel():
        raise ValueError(f"mpienv: {operation}: {all_parts.numel()} numbers for {ranks} parts of {part.numel()}")


def _check_splits(operation: str, tensor: Any, sizes: List[int], ranks: int) -> None:
    rows = tensor.size(0) if tensor.dim() else 0
    if not sizes and rows % ranks:
        raise ValueError(f"mpienv: {operation}: {rows} rows do not divide among {ranks} ranks; pass their split sizes")
    if sizes and (len(sizes) != ranks or sum(sizes) != rows):
        raise ValueError(f"mpienv: {operation}: split sizes {list(sizes)} for {rows} rows and {ranks} ranks")


def _split(tensor: Any, sizes: List[int], ranks: int) -> List[Any]:
    return list(torch.split(tensor, list(sizes) or [tensor.size(0) // ranks] * ranks))


def _after_fork() -> None:
    for group in list(_OPEN):
        group.release_in_child()


def _at_exit() -> None:
    """Leaves the groups before the interpreter takes its time to end, so that the other ranks learn it at once.

    A rank that fails because another one has left lets that one end first: a launcher names the first that ends.
    """
    for group in list(_OPEN):
        group.leave()
    time.sleep(max(0.0, Operations._failed_at + _LATER - time.monotonic()))


atexit.register(_at_exit)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
