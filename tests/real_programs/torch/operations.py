"""Makes each call of torch.distributed over gloo and over mpienv, with the same tensors, and compares the results."""
import itertools
import os
import time

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
COUNTS = [0, 1, 7, 1000, 100_000]
compared = 0
# What gloo of this version does not have.
refused = []


def values(rank, count, dtype):
    """Small numbers, so that sums in any order are equal."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    numbers = torch.randint(0, 3, (count,), generator=generator)
    return numbers.bool() if dtype is torch.bool else numbers.to(dtype)


def compare(name, call, reference, tested):
    """A call returns the tensors that it has changed."""
    global compared
    found = call(tested)
    try:
        expected = call(reference)
    except RuntimeError as error:
        if "not support" not in str(error):
            raise
        refused.append(name)
        return
    assert len(expected) == len(found), name
    for one, other in zip(expected, found):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), f"{name}: {other}, and gloo has {one}"
    compared += 1


def reductions(rank, size, groups):
    operations = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    for dtype, op, count in itertools.product(FLOATS + INTEGERS, operations, COUNTS):
        def all_reduce(group):
            tensor = values(rank, count, dtype)
            dist.all_reduce(tensor, op, group=group)
            return [tensor]

        def reduce(group):
            tensor = values(rank, count, dtype)
            dist.reduce(tensor, size - 1, op, group=group)
            return [tensor] if rank == size - 1 else []

        compare(f"all_reduce {op} {dtype} {count}", all_reduce, *groups)
        compare(f"reduce {op} {dtype} {count}", reduce, *groups)
    for dtype, op in itertools.product(INTEGERS, [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]):
        def bits(group):
            tensor = values(rank, 100, dtype)
            dist.all_reduce(tensor, op, group=group)
            return [tensor]

        compare(f"all_reduce {op} {dtype}", bits, *groups)
    for dtype, count in itertools.product(FLOATS + INTEGERS, COUNTS):
        def reduce_scatter(group):
            output = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(output, values(rank, count * size, dtype), group=group)
            return [output]

        compare(f"reduce_scatter {dtype} {count}", reduce_scatter, *groups)

    def by_list(group):
        output = torch.empty(5)
        dist.reduce_scatter(output, list(values(rank, 5 * size, torch.float32).chunk(size)), group=group)
        return [output]

    compare("reduce_scatter of a list", by_list, *groups)

    def complex_sum(group):
        tensor = torch.complex(values(rank, 9, torch.float32), values(rank + 1, 9, torch.float32))
        dist.all_reduce(tensor, group=group)
        return [tensor]

    compare("all_reduce complex", complex_sum, *groups)

    for dtype, step in itertools.product([torch.float32, torch.float64, torch.int64], [1, 2]):
        def sparse_sum(group):
            # Rows that several ranks have, and with step 2 none on every second rank.
            dense = values(rank, 30, dtype).view(10, 3) * (rank % step == 0)
            tensor = dense.to_sparse(1)
            dist.all_reduce(tensor, group=group)
            return [tensor.to_dense(), tensor.coalesce().values()]

        compare(f"all_reduce of sparse {dtype}, step {step}", sparse_sum, *groups)

    def not_contiguous(group):
        tensor = values(rank, 12, torch.float32).view(3, 4)
        dist.all_reduce(tensor.t().contiguous().t() if group is groups[0] else tensor.t(), group=group)
        return [tensor] if group is not groups[0] else [_sum_of(size)]

    compare("all_reduce of a transposed tensor", not_contiguous, *groups)


def _sum_of(size):
    return sum(values(rank, 12, torch.float32).view(3, 4) for rank in range(size))


def moves(rank, size, groups):
    for dtype, count in itertools.product(FLOATS + INTEGERS + [torch.bool], COUNTS):
        def broadcast(group):
            tensor = values(rank, count, dtype)
            dist.broadcast(tensor, size - 1, group=group)
            return [tensor]

        def all_gather(group):
            outputs = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, values(rank, count, dtype), group=group)
            return outputs

        def all_gather_single(group):
            output = torch.empty(count * size, dtype=dtype)
            dist.all_gather_into_tensor(output, values(rank, count, dtype), group=group)
            return [output]

        def gather(group):
            outputs = [torch.empty(count, dtype=dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(values(rank, count, dtype), outputs, 0, group=group)
            return outputs or []

        def scatter(group):
            output = torch.empty(count, dtype=dtype)
            inputs = [values(other, count, dtype) for other in range(size)] if rank == 0 else None
            dist.scatter(output, inputs, 0, group=group)
            return [output]

        def all_to_all(group):
            output = torch.empty(count * size, dtype=dtype)
            dist.all_to_all_single(output, values(rank, count * size, dtype), group=group)
            return [output]

        def in_place(group):
            output = values(rank, count * size, dtype)
            dist.all_gather_into_tensor(output, output.chunk(size)[rank] if count else output, group=group)
            return [output]

        calls = [broadcast, all_gather, all_gather_single, gather, scatter, all_to_all]
        for call in calls + ([in_place] if count else []):
            compare(f"{call.__name__} {dtype} {count}", call, *groups)

    def splits(group):
        # Rank r sends r + s rows to rank s.
        inputs = values(rank, sum(rank + other for other in range(size)) * 3, torch.float32).view(-1, 3)
        rows = [rank + other for other in range(size)]
        output = torch.empty(sum(rows), 3)
        dist.all_to_all_single(output, inputs, rows, rows, group=group)
        return [output]

    compare("all_to_all_single with splits", splits, *groups)


def objects(rank, size, groups):
    def gathered(group):
        outputs = [None] * size
        dist.all_gather_object(outputs, {"rank": rank, "text": "x" * rank}, group=group)
        return [[output["rank"] for output in outputs]]

    def broadcasted(group):
        box = [f"from {rank}", rank]
        dist.broadcast_object_list(box, 0, group=group)
        return [[box[1]]]

    def scattered(group):
        box = [None]
        dist.scatter_object_list(box, list(range(size)) if rank == 0 else None, 0, group=group)
        return [box]

    for call in (gathered, broadcasted, scattered):
        compare(call.__name__, call, *groups)


def functions(rank, size, groups):
    def reduced(group):
        return [functional.all_reduce(values(rank, 10, torch.float32), "sum", group) + 0]

    def gathered(group):
        return [functional.all_gather_tensor(values(rank, 10, torch.float32), 0, group) + 0]

    def scattered(group):
        return [functional.reduce_scatter_tensor(values(rank, 10 * size, torch.float32), "sum", 0, group) + 0]

    def exchanged(group):
        return [functional.all_to_all_single(values(rank, 10 * size, torch.float32), None, None, group) + 0]

    def coalesced(group):
        tensors = [values(rank, count, torch.float32) for count in (3, 5)]
        return [tensor + 0 for tensor in functional.all_reduce_coalesced(tensors, "sum", group)]

    for call in (reduced, gathered, scattered, exchanged, coalesced):
        compare(call.__name__, call, *groups)


def messages(rank, size, groups):
    to, source = (rank + 1) % size, (rank - 1) % size

    def ring(group):
        received = torch.empty(1000)
        works = [dist.isend(values(rank, 1000, torch.float32), to, group=group), dist.irecv(received, source, group=group)]
        for work in works:
            work.wait()
        return [received]

    def batch(group):
        received = torch.empty(10)
        calls = [
            dist.P2POp(dist.isend, values(rank, 10, torch.float32), to, group),
            dist.P2POp(dist.irecv, received, source, group),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return [received]

    def tags(group):
        first, second = torch.empty(1), torch.empty(1)
        works = [dist.isend(torch.tensor([float(tag)]), to, group=group, tag=tag) for tag in (1, 2)]
        dist.recv(second, source, group=group, tag=2)
        dist.recv(first, source, group=group, tag=1)
        for work in works:
            work.wait()
        return [first, second]

    for call in (ring, batch, tags):
        compare(call.__name__, call, *groups)


def order(rank, size, groups):
    """Many calls that are begun at once end with the results of calls one by one."""

    def many(group):
        tensors = [values(rank, 100 + index, torch.float32) for index in range(50)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        last = torch.ones(1)
        dist.all_reduce(last, group=group)
        for work in reversed(works):
            work.wait()
        return tensors + [last]

    compare("calls that are begun at once", many, *groups)


def polling(rank, size, groups):
    """A call whose work is only asked whether it has ended."""

    def poll(group):
        tensor = values(rank, 100, torch.float32)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        end = time.monotonic() + 300
        while not work.is_completed():
            assert time.monotonic() < end, "the work is never completed"
            time.sleep(0.001)
        assert work.is_success()
        return [tensor, *work.result()]

    compare("a work that is polled", poll, *groups)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    both = [dist.new_group(backend=backend) for backend in ("gloo", "mpienv")]
    for part in (reductions, moves, objects, functions, order, polling, *([messages] if size > 1 else [])):
        part(rank, size, both)
    # Groups that overlap, each in the order of its own ranks.
    for members in ([0, size - 1], list(range(1, size)), list(reversed(range(size)))):
        members = list(dict.fromkeys(members))
        if not members:
            continue
        pairs = [dist.new_group(members, backend=backend) for backend in ("gloo", "mpienv")]
        if rank not in members:
            continue
        place = dist.get_group_rank(pairs[1], rank)

        def all_gather(group):
            outputs = [torch.empty(3) for _ in members]
            dist.all_gather(outputs, torch.full((3,), float(rank)), group=group)
            return outputs

        def all_reduce(group):
            tensor = torch.full((3,), float(rank))
            dist.all_reduce(tensor, group=group)
            return [tensor]

        for call in (all_gather, all_reduce):
            compare(f"{call.__name__} in {members}", call, *pairs)
        assert place == members.index(rank) or sorted(members).index(rank) == place
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, ReduceOp.AVG, group=both[1])
    assert mean.item() == (size - 1) / 2
    lacks = f", and gloo has no {', '.join(refused)}" if refused else ""
    os.write(1, f"rank {rank} of {size}: {compared} calls are equal{lacks}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
