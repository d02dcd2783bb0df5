"""Arguments that ranks pass to collective operations over mpienv, and that differ or that no call can take.

Each case is a job of two ranks, which prints what the ranks get.

    arguments.py [--gloo] [CASE...]    over gloo, it prints what happens and does not fail
"""
import datetime
import os
import subprocess
import sys

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

GLOO = "--gloo" in sys.argv
TIMEOUT = 10
# Before, PyTorch's own monitored_barrier knows only gloo's groups, and its split_group only those of NCCL.
IS_NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
REFUSES = "one rank refuses its arguments"
LATE = "a monitored barrier for which a rank is late"


def sparse(*shape):
    return torch.sparse_coo_tensor([[0]] + [[0]] * (len(shape) - 1), [1.0], shape)


def uneven(values, lengths):
    dist.all_gather([torch.empty(length, dtype=values.dtype) for length in lengths], values)


def reduce_of(dtype):
    return lambda: dist.all_reduce(torch.ones(4, dtype=dtype))


def moves(dtype, count=4):
    return lambda: dist.broadcast(torch.ones(count, dtype=dtype), 0)


def bits(op):
    return lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op)


def gather():
    dist.all_gather([torch.zeros(4, dtype=torch.int32) for _ in range(2)], torch.ones(4, dtype=torch.int32))


def scattered(op):
    return lambda: dist.reduce_scatter_tensor(torch.ones(2, dtype=torch.int32), torch.ones(4, dtype=torch.int32), op)


def sums(*shape):
    return lambda: dist.all_reduce(sparse(*shape))


# What ranks 0 and 1 call, and words that the error of both has.
DIFFERENT = {
    "int16 with int32": (reduce_of(torch.int16), reduce_of(torch.int32), "4 int16", "4 i32"),
    "int16 with uint16": (reduce_of(torch.int16), reduce_of(torch.uint16), "4 int16", "4 uint16"),
    # PyTorch itself makes pairs of the complex numbers of all_reduce, broadcast and all_gather.
    "complex64[2] with float32[4]": (
        lambda: dist.reduce(torch.ones(2, dtype=torch.complex64), 0), lambda: dist.reduce(torch.ones(4), 0), "2 complex64", "4 f32"
    ),
    "broadcast of int16 with uint16": (moves(torch.int16), moves(torch.uint16), "4 int16", "4 uint16"),
    "BAND with BXOR": (bits(ReduceOp.BAND), bits(ReduceOp.BXOR), "all_reduce (band) of 4 i32", "all_reduce (bxor) of 4 i32"),
    "BAND with all_gather": (bits(ReduceOp.BAND), gather, "all_reduce (band) of 4 i32", "all_gather_into of 4 i32"),
    "reduce_scatter BOR with SUM": (
        scattered(ReduceOp.BOR), scattered(ReduceOp.SUM), "reduce_scatter (bor) of 4 i32", "reduce_scatter_sum of 4 i32"
    ),
    "uneven list with broadcast": (
        lambda: uneven(torch.ones(1), [1, 2]), moves(torch.float32, 1), "all_gather (uneven) of 3 f32", "broadcast of 1 f32"
    ),
    "sparse 5 with 6": (sums(5), sums(6), "all_reduce (sparse) of 5 f32", "all_reduce (sparse) of 6 f32"),
    "sparse 5 with 5x1": (sums(5), sums(5, 1), "of 5 f32 in 1 dimensions", "of 5 f32 in 2 dimensions"),
    "sparse 2x3 with 3x2": (sums(2, 3), sums(3, 2), "(2, 3)", "(3, 2)"),
}


def split(rank):
    """Split sizes on rank 1 alone."""
    output, values = torch.empty(4), torch.arange(4.0) + 10 * rank
    sizes = ([2, 2], [2, 2]) if rank else (None, None)
    dist.all_to_all_single(output, values, *sizes)
    return output


def reshaped(rank):
    """Parts that are not contiguous, into parts of another shape."""
    outputs = [torch.empty(2, 3) for _ in range(2)]
    dist.all_to_all(outputs, [(torch.arange(6.0) + 10 * rank).view(2, 3).t() for _ in range(2)])
    return torch.cat(outputs).flatten()


_RESHAPED = [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 10.0, 13.0, 11.0, 14.0, 12.0, 15.0]


def same_place(_):
    place = torch.zeros(2)
    dist.all_gather([place, place], torch.ones(2))
    return place


def negated(rank):
    """A tensor whose memory has the numbers with the other sign."""
    part = torch.tensor([complex(rank, rank + 1.0)]).conj().imag
    assert part.is_neg() and part.is_contiguous()
    # `dist.all_reduce` loses the result: PyTorch passes a copy on.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp.MAX
    backend.allreduce([part], options).wait()
    return part


def parts(rank):
    """Groups of one rank each, split from the group of both."""
    part = dist.split_group(None, [[1], [0]])
    values = torch.ones(1) * (rank + 5)
    dist.all_reduce(values, group=part)
    assert part.size() == 1 and dist.get_process_group_ranks(part) == [rank]
    both = dist.split_group(None, [[1, 0]])
    total = torch.ones(1) * rank
    dist.all_reduce(total, group=both)
    return torch.cat([values, total])


def monitored_barrier(**options):
    (dist if IS_NEW else dist.group.WORLD).monitored_barrier(**options)


def monitored(_):
    """Twice, so that the second does not take what the first has left in the store."""
    for _ in range(2):
        monitored_barrier()
    return torch.ones(1)


def monitored_again(rank):
    """In a second group on the store of a first one, for whose barrier rank 1 was late."""
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for turn in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo" if GLOO else "mpienv", store=store, rank=rank, world_size=2)
        if turn == 0:
            one_rank_is_late(rank)
    monitored_barrier()
    return torch.ones(1)


def of_device(rank):
    """A program whose new tensors are on another device, and that sums a sparse tensor."""
    part = torch.sparse_coo_tensor([[rank]], [1.0], (3,))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    torch.set_default_device("meta")
    # In `dist.all_reduce`, newer versions of PyTorch forget the device.
    backend.allreduce([part], dist.AllreduceOptions()).wait()
    torch.set_default_device("cpu")
    return part.to_dense()


EQUAL = {
    "a sparse sum, and another default device": (of_device, [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]),
    "a group that is split": (parts, [5.0, 1.0], [6.0, 1.0]),
    "a monitored barrier": (monitored, [1.0], [1.0]),
    "a monitored barrier after one that failed": (monitored_again, [1.0], [1.0]),
    "a negated view": (negated, [-1.0], [-1.0]),
    "split sizes on one rank": (split, [0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]),
    "parts of another shape": (reshaped, _RESHAPED, _RESHAPED),
    "a list with a tensor twice": (same_place, [1.0, 1.0], [1.0, 1.0]),
}

# What no call takes, on both ranks. The group goes on.
REFUSED = {
    "all_to_all of two types": lambda: dist.all_to_all([torch.zeros(2)] * 2, [torch.zeros(2).double()] * 2),
    "all_to_all_single of two types": lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2).double()),
    "all_to_all_single into more": lambda: dist.all_to_all_single(torch.zeros(8), torch.zeros(4)),
    "a part of another length": lambda: uneven(torch.ones(7), [1, 2]),
    "a result whose numbers share memory": lambda: dist.all_reduce(torch.ones(1).expand(4)),
    "a list of results whose numbers share memory": lambda: dist.all_gather([torch.ones(1).expand(2)] * 2, torch.ones(2)),
    "a factor": lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0)),
    "a group with other devices": lambda: dist.new_group(backend="cpu:mpienv,cuda:nccl"),
    "a short list": lambda: dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)]),
}


def one_rank_refuses(rank):
    """Rank 1 of 3 passes a list that it refuses, and then a right one. The next time, it goes on with another call."""
    for turn in range(2):
        parts = [torch.zeros(2) for _ in range(3)]
        try:
            dist.all_gather(parts[rank % 2 :], torch.ones(2))
        except ValueError as error:
            print(error, flush=True)
            dist.barrier() if turn else dist.all_gather(parts, torch.ones(2))
        assert all(part.tolist() == [1.0, 1.0] for part in parts), parts


def one_rank_is_late(rank):
    """Rank 1 calls the barrier after the limit of rank 0, and then the group goes on."""
    limit = datetime.timedelta(seconds=TIMEOUT if rank else 1)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["is late"])
    try:
        monitored_barrier(timeout=limit, wait_all_ranks=True)
    except RuntimeError as error:
        text = str(error)
    store.set("is late", "")
    dist.barrier()
    print(text, flush=True)


def run(case):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo" if GLOO else "mpienv", timeout=datetime.timedelta(seconds=TIMEOUT))
    try:
        if case in DIFFERENT:
            print("accepted", DIFFERENT[case][rank](), flush=True)
        elif case in EQUAL:
            print(EQUAL[case][0](rank).tolist(), flush=True)
        elif case in REFUSED:
            try:
                print("accepted", REFUSED[case](), flush=True)
            except (ValueError, RuntimeError) as error:
                dist.barrier()
                print("refused:", str(error).splitlines()[0], flush=True)
        else:
            (one_rank_is_late if case == LATE else one_rank_refuses)(rank)
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
    # The others may still ask its store why a rank has refused its call.
    if rank == 0:
        sys.stdin.read()
    os._exit(0)


def lines_of(case):
    """The last line of each rank."""
    size = 3 if case == REFUSES else 2
    words = [sys.executable, __file__, *(["--gloo"] if GLOO else []), "--run", case]
    store = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(size), "MASTER_PORT": str(free_port())}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(words, env={**store, "RANK": str(rank)}, **pipes) for rank in range(size)]
    # The first rank ends when its stdin does.
    said = [rank.communicate()[0] for rank in reversed(ranks)][::-1]
    return [(text.splitlines() or [f"exit code {rank.returncode}"])[-1] for rank, text in zip(ranks, said)]


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check(case, lines):
    if case in DIFFERENT:
        assert all(word in line for word in DIFFERENT[case][2:] for line in lines), lines
    elif case in EQUAL:
        assert lines == [str(expected) for expected in EQUAL[case][1:]], lines
    elif case in REFUSED:
        assert all(line.startswith("refused: ") for line in lines), lines
    elif case == LATE:
        assert all("rank 1 did not arrive within 1 s" in line for line in lines), lines
    else:
        assert all("rank 1 had refused its call before: mpienv: all_gather: 2 tensors for 3 ranks" in line for line in lines), lines


def main():
    if "--run" in sys.argv:
        run(sys.argv[-1])
    chosen = [word for word in sys.argv[1:] if word != "--gloo"]
    left_out = "a group with other devices" if IS_NEW else "a group that is split"
    every = [*DIFFERENT, *EQUAL, *REFUSED, REFUSES, LATE]
    for case in chosen or [case for case in every if case != left_out]:
        lines = lines_of(case)
        print(case, *(f"    rank {rank}: {line}" for rank, line in enumerate(lines)), sep="\n", flush=True)
        if not GLOO:
            check(case, lines)


main()
