"""Fails if the memory, threads or descriptors of a rank grow with its calls, or if other threads stand still while a call waits."""
import os
import threading
import time
import weakref

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def threads():
    return len(os.listdir("/proc/self/task"))


def helpers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mpienv")]


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used():
    return len(os.listdir("/proc/self/fd")), threads()


def kinds(rank, size):
    """A call of each kind, which takes whether it is begun or made at once."""
    part, whole, other = torch.ones(100), torch.ones(100 * size), torch.ones(100 * size)
    parts = list(whole.chunk(size))
    of_first = lambda those: those if rank == 0 else None

    def messages(is_begun):
        work = dist.isend(part, (rank + 1) % size)
        dist.recv(other[:100], (rank - 1) % size)
        work.wait()

    return {
        "all_reduce": lambda begun: dist.all_reduce(part, dist.ReduceOp.MAX, async_op=begun),
        "reduce": lambda begun: dist.reduce(part, 0, dist.ReduceOp.MAX, async_op=begun),
        "broadcast": lambda begun: dist.broadcast(part, 0, async_op=begun),
        "all_gather": lambda begun: dist.all_gather(parts, part, async_op=begun),
        "all_gather_into_tensor": lambda begun: dist.all_gather_into_tensor(whole, part, async_op=begun),
        "reduce_scatter_tensor": lambda begun: dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX, async_op=begun),
        "gather": lambda begun: dist.gather(part, of_first(parts), 0, async_op=begun),
        "scatter": lambda begun: dist.scatter(part, of_first(parts), 0, async_op=begun),
        "all_to_all_single": lambda begun: dist.all_to_all_single(whole, other, async_op=begun),
        "barrier": lambda begun: dist.barrier(async_op=begun),
        "send and recv": messages,
        "functional all_reduce": lambda begun: functional.all_reduce(part, "max", dist.group.WORLD).wait(),
    }


def make(call, number):
    for index in range(number):
        work = call(index % 2 == 0)
        if isinstance(work, dist.Work):
            work.wait()


def main():
    dist.init_process_group("gloo")
    before = threads()
    group = dist.new_group(backend="mpienv")
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    of_group = threads() - before
    assert of_group <= 1 and len(helpers()) == 1, f"{of_group} threads of one group, {helpers()}"
    dist.destroy_process_group()
    assert not helpers(), helpers()

    dist.init_process_group("mpienv")
    rank, most = dist.get_rank(), 0
    for name, call in kinds(rank, dist.get_world_size()).items():
        make(call, 1500)
        first, before = memory(), used()
        make(call, 10_000)
        grown, (descriptors, count) = memory() - first, used()
        # The threads of a connection start when a message first waits.
        is_same = descriptors == before[0] and before[1] <= count <= before[1] + 2 * (call.__name__ == "messages")
        assert grown < 4 << 20 and is_same, f"{name}: {grown} bytes more after 10,000 calls, {before}, {used()}"
        most = max(most, grown)

    part = torch.ones(1)
    work, is_left = dist.all_reduce(part, async_op=True), weakref.ref(part)
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()
    del part, work
    # The group's thread may still drop it.
    deadline = time.monotonic() + 10
    while is_left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_left() is None, "a call that was asked whether it is completed keeps its tensor"

    # While rank 0 waits, its other thread counts.
    count, is_waiting = 0, True

    def counts():
        nonlocal count
        while is_waiting:
            count += 1
            time.sleep(0.01)

    other = threading.Thread(target=counts)
    other.start()
    if rank == 1:
        time.sleep(2)
    dist.barrier()
    is_waiting = False
    other.join()
    assert rank == 1 or count > 20, f"the other thread counted to {count} in 2 s"
    dist.destroy_process_group()
    assert not helpers(), helpers()
    os.write(1, f"rank {rank}: {of_group} thread of a group, at most {most} bytes more after 10,000 calls of a kind\n".encode())


if __name__ == "__main__":
    main()
