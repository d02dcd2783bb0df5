"""Fails if the threads or the memory of a group grow with its calls, or if other threads stand still while a call waits."""
import os
import threading
import time

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist


def threads():
    return len(os.listdir("/proc/self/task"))


def helpers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mpienv")]


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls(number):
    tensor, output = torch.ones(1000), torch.empty(1000 * dist.get_world_size())
    for index in range(number):
        work = dist.all_reduce(tensor, async_op=index % 2 == 0)
        dist.all_gather_into_tensor(output, tensor)
        if work is not None:
            work.wait()
        tensor.fill_(1)


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
    rank = dist.get_rank()
    calls(1000)
    first = memory()
    calls(10_000)
    grown = memory() - first
    assert grown < 4 << 20, f"{grown} bytes more after 10,000 calls"

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
    os.write(1, f"rank {rank}: {of_group} thread of a group, {grown} bytes more after 10,000 calls\n".encode())


if __name__ == "__main__":
    main()
