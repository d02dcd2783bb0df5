"""Messages between two ranks over mpienv: tags, order, faults, and what they cost. Each case is a job of its own.

    messages.py [--gloo] [CASE...]    over gloo, it prints what happens and does not fail
"""
import datetime
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback

import mpienv_rs.torch  # Before PyTorch 2.14, only this registers the backend.
import torch
import torch.distributed as dist

BACKEND = "gloo" if "--gloo" in sys.argv else "mpienv"
# A machine under load needs more time.
SLACK = float(os.environ.get("MPIENV_SLACK", "1"))
TIMEOUT = 60
# The guide says so: a lost rank is named within a second.
SOON = 2 * SLACK
LARGE = 16 << 20


def sleep_forever():
    while True:
        time.sleep(1)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def message(rank, tag, turn, count=8):
    return torch.arange(count, dtype=torch.int64) + 1_000_000 * rank + 1000 * tag + turn


def check(tensor, *of):
    assert torch.equal(tensor, message(*of, tensor.numel())), f"{of}: {tensor[:4]}"


def fails(call, *words, without=()):
    """Checks that a call fails soon with an error that has these words."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        text, after = str(error).splitlines()[0], time.monotonic() - begun
    else:
        raise AssertionError("no error")
    if BACKEND == "mpienv":
        assert all(word in text for word in words), f"{text}: not {words}"
        assert not any(word in text for word in without), text
        assert after < SOON, f"{text}: after {after:.1f} s"
    return f"{text} ({after:.1f} s)"


def abort():
    """PyTorch's own way, or before 2.9, which knows none but NCCL's, that of the group."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9):
        dist.distributed_c10d._abort_process_group()
    else:
        dist.group.WORLD.abort()


def recv(source, tag=0, count=8):
    tensor = torch.empty(count, dtype=torch.int64)
    dist.recv(tensor, source, tag=tag)
    return tensor


def lost(rank):
    return f"rank {rank} on", "is lost"


# What is right.


def tags(rank, size):
    """Messages of many tags, begun in any order, arrive in the order of their tag."""
    shuffled, works, places = random.Random(rank), [], []
    others = [other for other in range(size) if other != rank]
    for other in others:
        sends = [tag for tag in range(40) for _ in range(5)]
        shuffled.shuffle(sends)
        turns = dict.fromkeys(range(40), 0)
        for tag in sends:
            works.append(dist.isend(message(rank, tag, turns[tag], 1 + 97 * tag), other, tag=tag))
            turns[tag] += 1
    receives = [(other, tag, turn) for other in others for tag in range(40) for turn in range(5)]
    # In another order, but for the messages of a tag.
    receives.sort(key=lambda receive: (receive[2], shuffled.random()))
    for other, tag, turn in receives:
        tensor = torch.empty(1 + 97 * tag, dtype=torch.int64)
        works.append(dist.irecv(tensor, other, tag=tag))
        places.append((tensor, other, tag, turn))
    shuffled.shuffle(works)
    for work in works:
        work.wait()
    for tensor, *of in places:
        check(tensor, *of)


def of_device(rank, size):
    """A message waits for its receive in a program whose new tensors are on another device."""
    if rank == 0:
        for tag in (1, 2):
            dist.send(message(0, tag, 0), 1, tag=tag)
        return
    later, first = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    torch.set_default_device("meta")
    # In `dist.recv`, newer versions of PyTorch forget the device.
    backend.recv([later], 0, 2).wait()
    backend.recv([first], 0, 1).wait()
    torch.set_default_device("cpu")
    check(first, 0, 1, 0)
    check(later, 0, 2, 0)


def large(rank, size):
    """A small message passes large ones that are not received yet, in both directions at once."""
    other = rank ^ 1
    works = [dist.isend(message(rank, 1, turn, LARGE // 8 * 4), other, tag=1) for turn in range(2)]
    works.append(dist.isend(message(rank, 2, 0), other, tag=2))
    check(recv(other, 2), other, 2, 0)
    for turn in range(2):
        check(recv(other, 1, LARGE // 8 * 4), other, 1, turn)
    for work in works:
        work.wait()


def threads(rank, size):
    """Threads that receive with tags of their own, while others send."""
    errors = []

    def run(tag):
        try:
            for turn in range(100):
                if (tag + rank) % 2:
                    dist.send(message(rank, tag, turn), rank ^ 1, tag=tag)
                    check(recv(rank ^ 1, 50 + tag), rank ^ 1, 50 + tag, turn)
                else:
                    check(recv(rank ^ 1, tag), rank ^ 1, tag, turn)
                    dist.send(message(rank, 50 + tag, turn), rank ^ 1, tag=50 + tag)
        except BaseException:
            errors.append(traceback.format_exc())

    of_tags = [threading.Thread(target=run, args=(tag,)) for tag in range(8)]
    for thread in of_tags:
        thread.start()
    for thread in of_tags:
        thread.join()
    assert not errors, errors[0]


def batch(rank, size):
    """All ranks exchange with all others in one batch."""
    others, operations, places = [other for other in range(size) if other != rank], [], []
    for other in others:
        tensor = torch.empty(100_000, dtype=torch.int64)
        places.append((tensor, other))
        operations.append(dist.P2POp(dist.isend, message(rank, 0, other, 100_000), other))
        operations.append(dist.P2POp(dist.irecv, tensor, other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for tensor, other in places:
        check(tensor, other, 0, rank)


def full(rank, size):
    """Messages wait for their room, and arrive in the order in which they are received at last."""
    limit()
    if rank == 3:
        works = [dist.isend(message(3, 1, turn, 1 << 17), 2, tag=1) for turn in range(4)]
        dist.send(message(3, 2, 0), 2, tag=2)
        for work in works:
            work.wait()
    if rank == 2:
        work = dist.irecv(torch.empty(8, dtype=torch.int64), 3, tag=2)
        time.sleep(0.5)
        assert BACKEND == "gloo" or not work.is_completed()
        for turn in range(4):
            check(recv(3, 1, 1 << 17), 3, 1, turn)
        work.wait()
        check(work.result()[0], 3, 2, 0)


def any_rank(rank, size):
    """Receives that name no rank get the messages of their tag, of each rank in its order, and say whose they are."""
    if rank != 0:
        # The last one has another tag, and waits at rank 0 or for it.
        works = [dist.isend(message(rank, tag, turn), 0, tag=tag) for turn in range(20) for tag in (1, 2)]
        for work in works:
            work.wait()
        return
    turns, tensor = {other: [0, 0] for other in range(1, size)}, torch.empty(8, dtype=torch.int64)

    def came(source, tag, found):
        check(found, source, tag, turns[source][tag - 1])
        turns[source][tag - 1] += 1

    for _ in range(20):
        came(dist.recv(tensor, tag=1), 1, tensor)
    # Among those that name a rank.
    for _ in range(10):
        dist.recv(tensor, 2, tag=2)
        came(2, 2, tensor)
        came(dist.recv(tensor, tag=2), 2, tensor)
    # Not in the thread of the program, and into a larger tensor that is not contiguous.
    places = [(torch.full((9, 2), -1)[:, 0], tag) for tag in (1, 2) for _ in range(40)]
    works = [dist.irecv(place, tag=tag) for place, tag in places]
    deadline = time.monotonic() + TIMEOUT
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < deadline, "not completed"
        time.sleep(0.01)
    for work, (place, tag) in zip(works, places):
        came(work._source_rank(), tag, place[:8])


def any_rank_again(rank, size):
    """The same message from any rank, after it came from this one."""
    tensor = torch.empty(8, dtype=torch.int64)
    if rank == 1:
        for turn in range(3):
            dist.send(message(1, 0, turn), 0)
    else:
        for turn, source in enumerate((1, None, None)):
            assert dist.recv(tensor, source) == 1
            check(tensor, 1, 0, turn)


def any_rank_left(rank, size):
    """A receive that names no rank goes on after one has left, until none is left that can send. Then all are named."""
    if rank == 1:
        return dist.destroy_process_group()
    if rank in (2, 3):
        time.sleep(0.5 * rank)
        dist.send(message(rank, 0, 0), 0)
        time.sleep(0.5)
        die()
    if rank == 0:
        tensor = torch.empty(8, dtype=torch.int64)
        for other in (2, 3):
            assert dist.recv(tensor) == other
            check(tensor, other, 0, 0)
        names = [f"rank {other} on" for other in (1, 2, 3)]
        return fails(lambda: dist.recv(tensor), "no rank is left that can send", *names)


def any_rank_gone(rank, size):
    """What a rank has sent before it left is received from any rank, also after receives that it leaves without a sender."""
    if rank == 1:
        for work in [dist.isend(message(1, tag, 0), 0, tag=tag) for tag in (1, 2)]:
            work.wait()
        return dist.destroy_process_group()
    tensor = torch.empty(8, dtype=torch.int64)
    assert dist.recv(tensor, tag=2) == 1
    check(tensor, 1, 2, 0)
    said = fails(lambda: dist.recv(tensor, tag=3), "no rank is left that can send", "rank 1 on")
    assert dist.recv(tensor, tag=1) == 1
    check(tensor, 1, 1, 0)
    return said


def any_rank_late(rank, size):
    """A receive that names no rank ends after the timeout, and names a rank that is lost. The group goes on."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1), backend=BACKEND)
    if rank == 3:
        die()
    if rank == 0:
        call = lambda: dist.recv(torch.empty(8, dtype=torch.int64), group=group, tag=3)
        said = fails_after(call, "no rank sent a message with tag 3 within 1 s", *lost(3))
        assert dist.recv(torch.empty(8, dtype=torch.int64), group=group) == 2
        return said
    if rank == 2:
        time.sleep(1.5)
        dist.send(message(2, 0, 0), 0, group=group)


def any_rank_ended(rank, size):
    """A signal's handler and destroy_process_group end receives that name no rank."""

    def interrupt(*_):
        raise KeyboardInterrupt("no rank")

    if rank != 0:
        sleep_forever()
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    begun = time.monotonic()
    try:
        dist.recv(torch.empty(1))
    except KeyboardInterrupt:
        pass
    assert 0.3 < time.monotonic() - begun < 0.5 + SOON
    works = [dist.irecv(torch.empty(1)), dist.irecv(torch.empty(1), tag=1)]
    time.sleep(0.3)
    dist.destroy_process_group()
    return [fails(work.wait, "mpienv: recv", "closed") for work in works][0]


def limit():
    """Lets 2 MiB of messages wait."""
    if BACKEND == "mpienv":
        from mpienv_rs.torch import _messages

        _messages.LIMIT = 2 << 20


# What is wrong is named.


def full_for_good(rank, size):
    """What has no room is named after the timeout."""
    limit()
    group = dist.new_group([2, 3], timeout=datetime.timedelta(seconds=1), backend=BACKEND)
    if rank == 3:
        # Its own timeout comes later.
        time.sleep(0.5)
        works = [dist.isend(message(3, 1, turn, 1 << 17), 2, group=group, tag=1) for turn in range(3)]
        works.append(dist.isend(message(3, 2, 0), 2, group=group, tag=2))
        sleep_forever()
    if rank == 2:
        words = "rank 3 sends 1048576 bytes with tag 1 first", "at most 2097152 bytes, and 2097152 wait"
        return fails_after(lambda: dist.recv(torch.empty(8, dtype=torch.int64), 3, group=group, tag=2), *words)


def length(rank, size):
    """Both ranks name both, by their numbers in the job, in a group that has others, and both lengths."""
    group = dist.new_group([1, 3], backend=BACKEND)
    words = "rank 1", "send of 6 i64", "rank 3", "receive of 5 i64", "tag 7"
    if rank == 1:
        return fails(lambda: dist.send(torch.ones(6, dtype=torch.int64), 3, group=group, tag=7), *words)
    if rank == 3:
        return fails(lambda: dist.recv(torch.ones(5, dtype=torch.int64), 1, group=group, tag=7), *words)


def shorter(rank, size):
    """A shorter message fills the first numbers, whether it waits for its receive or not."""
    if rank == 1:
        works = [dist.isend(message(1, tag, 0, 5), 0, tag=tag) for tag in (1, 2, 3)]
        return [work.wait() for work in works] and None
    for tag in (2, 1, 3):
        # The last one is not contiguous.
        tensor = torch.full((8,), -1) if tag < 3 else torch.full((8, 2), -1)[:, 0]
        dist.recv(tensor, 1, tag=tag)
        check(tensor[:5], 1, tag, 0)
        assert tensor[5:].eq(-1).all(), tensor


def queued_length(rank, size):
    """As above, for a message that has waited."""
    if rank == 3:
        works = [dist.isend(message(3, tag, 0), 2, tag=tag) for tag in (1, 2)]
        return [work.wait() for work in works] and None
    if rank == 2:
        recv(3, 2)
        words = "rank 3 called send of 8 i64 with tag 1, rank 2 receive of 7 i64 with tag 1",
        return fails(lambda: recv(3, 1, 7), *words)


def own(rank, size):
    """A message to this rank, a tag that is negative."""
    for call in (lambda: dist.send(torch.ones(1), rank), lambda: dist.send(torch.ones(1), rank ^ 1, tag=-1)):
        try:
            call()
        except (ValueError, RuntimeError):
            pass
        else:
            raise AssertionError("no error")


def killed_before(rank, size):
    """The first message of a rank that is dead."""
    if rank == 3:
        die()
    if rank == 2:
        return fails(lambda: recv(3), *lost(3), without=("MASTER_ADDR", "MPIENV_PORT_RANGE"))
    if rank == 1:
        return fails(lambda: dist.send(torch.ones(1), 3), *lost(3), without=("MASTER_ADDR", "MPIENV_PORT_RANGE"))


def killed_meanwhile(rank, size):
    """A rank dies while the first message waits for it."""
    if rank == 3:
        time.sleep(1)
        die()
    if rank in (1, 2):
        begun = time.monotonic()
        said = fails_after(lambda: recv(3) if rank == 2 else dist.send(torch.ones(1), 3), *lost(3))
        return f"{said} ({time.monotonic() - begun:.1f} s)"


def fails_after(call, *words):
    """As `fails`, for a fault that happens after a second."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        text, after = str(error).splitlines()[0], time.monotonic() - begun - 1
    else:
        raise AssertionError("no error")
    assert BACKEND == "gloo" or all(word in text for word in words) and after < SOON, f"{text} after {after:.1f} s"
    return text


def killed_waiting(rank, size):
    """A rank dies that has sent a message before, and one that has received one."""
    if rank == 3:
        dist.send(message(3, 0, 0), 2)
        recv(1)
        time.sleep(1)
        die()
    if rank == 2:
        recv(3)
        return fails_after(lambda: recv(3, 9), *lost(3))
    if rank == 1:
        dist.send(message(1, 0, 0), 3)
        return fails_after(lambda: dist.send(torch.ones(LARGE), 3, tag=9), *lost(3))


def killed_within(rank, size):
    """A rank dies in the middle of a message of 1 GiB."""
    if rank == 3:
        tensor = torch.zeros(1 << 28)
        dist.send(message(3, 0, 0), 2)
        dist.isend(tensor, 2, tag=1)
        recv(2, 5)
        time.sleep(0.05)
        die()
    if rank == 2:
        place = torch.zeros(1 << 28)
        recv(3)
        dist.send(message(2, 5, 0), 3, tag=5)
        return fails(lambda: dist.recv(place, 3, tag=1), *lost(3))


def killed_queued(rank, size):
    """What a rank has sent before it died is received; what it has not is named."""
    if rank == 3:
        works = [dist.isend(message(3, tag, turn), 2, tag=tag) for turn in range(3) for tag in (1, 2)]
        for work in works:
            work.wait()
        time.sleep(0.5)
        die()
    if rank == 2:
        for turn in range(3):
            check(recv(3, 2), 3, 2, turn)
        said = fails(lambda: recv(3, 4), *lost(3))
        for turn in range(2):
            check(recv(3, 1), 3, 1, turn)
        return said


def left(rank, size):
    """A rank that has left the group before the first message."""
    if rank == 3:
        dist.destroy_process_group()
        sleep_forever()
    if rank in (1, 2):
        return fails(lambda: recv(3) if rank == 2 else dist.send(torch.ones(1), 3), *lost(3))


def forked(rank, size):
    """A process that was forked from a dead rank keeps no connection open: of messages, and of a call that ran."""
    if rank == 3:
        dist.send(message(3, 0, 0), 2)
        recv(1)
        # Ranks 1 and 2 do not make this call.
        dist.all_reduce(torch.ones(4), async_op=True)
        time.sleep(0.5)
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        die()
    if rank == 2:
        recv(3)
        return fails_after(lambda: recv(3, 1), *lost(3))
    if rank == 1:
        dist.send(message(1, 0, 0), 3)
        return fails_after(lambda: dist.send(torch.ones(LARGE), 3), *lost(3))
    if rank == 0:
        time.sleep(1)
        return fails(lambda: dist.all_reduce(torch.ones(4)), *lost(3))


def aborted(rank, size):
    """abort() ends a first message, a receive that waits, and a large message that is not received."""
    if rank in (1, 2, 3):
        if rank == 3:
            dist.send(message(3, 0, 0), 0)
        threading.Timer(1, abort).start()
        call = [None, lambda: recv(0), lambda: dist.send(torch.ones(1), 0), lambda: dist.send(torch.ones(LARGE), 0)][rank]
        return fails_after(call, "cancel" if rank == 3 else "")
    recv(3)
    sleep_forever()


def destroyed(rank, size):
    """destroy_process_group ends a receive that waits, with and without a connection, while the other rank lives."""
    if rank == 1:
        sleep_forever()
    if rank == 3:
        dist.send(message(3, 0, 0), 2)
        sleep_forever()
    if rank == 2:
        recv(3)
        works = [dist.irecv(torch.empty(1), 3, tag=1), dist.irecv(torch.empty(1), 1)]
        time.sleep(0.3)
        begun = time.monotonic()
        dist.destroy_process_group()
        took = time.monotonic() - begun
        assert took < SOON, took
        if BACKEND == "mpienv":
            for work in works:
                fails(work.wait, "mpienv: recv")
        return f"{took:.2f} s"


def waited(rank, size):
    """`wait` with a timeout keeps to it, for messages and for calls of all ranks."""
    if rank == 2:
        late = 0
        for turn in range(14):
            work = dist.irecv(torch.empty(1), 3, tag=turn) if turn % 2 else dist.all_reduce(torch.ones(1), async_op=True)
            begun = time.monotonic()
            try:
                work.wait(datetime.timedelta(seconds=0.2))
            except Exception:
                pass
            late += not 0.1 < time.monotonic() - begun < 0.2 + SOON
        assert BACKEND == "gloo" or not late, f"{late} of 14"
        return f"{late} of 14 late"
    time.sleep(6)


def timeouts(rank, size):
    """The timeout of one call, and one that a group gets later, limit calls of all ranks too."""
    groups = [dist.new_group(backend=BACKEND) for _ in range(2)]
    if rank == 3:
        sleep_forever()
    backends = [group._get_backend(torch.device("cpu")) for group in groups]
    options, second = dist.AllreduceOptions(), datetime.timedelta(seconds=1)
    options.timeout = second
    words = "rank 3 on", "did not arrive within 1 s"
    said = fails_after(lambda: backends[0].allreduce([torch.ones(4)], options).wait(), *words)
    backends[1]._set_default_timeout(second)
    fails_after(lambda: dist.all_reduce(torch.ones(4), group=groups[1]), *words)
    return said


def again(rank, size, store):
    """A group that is made again on the store of one whose message timed out."""
    dist.destroy_process_group()
    for turn in range(2):
        timeout = datetime.timedelta(seconds=1 if turn == 0 else TIMEOUT)
        dist.init_process_group(BACKEND, store=dist.PrefixStore("again", store), rank=rank, world_size=size, timeout=timeout)
        if turn == 0:
            if rank == 2:
                try:
                    dist.send(torch.ones(1), 3)
                except Exception:
                    pass
            time.sleep(3)
        elif rank == 2:
            dist.send(message(2, 0, 0), 3)
        elif rank == 3:
            check(recv(2), 2, 0, 0)
        if turn == 0:
            dist.destroy_process_group()


# What it costs.


def cost(rank, size):
    """10,000 messages with 1,000 tags."""
    used = lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), memory())
    tensor, other = torch.ones(16), rank ^ 1

    def turn(tag):
        if rank % 2:
            dist.send(tensor, other, tag=tag)
            dist.recv(tensor, other, tag=tag)
        else:
            dist.recv(tensor, other, tag=tag)
            dist.send(tensor, other, tag=tag)

    before = used()
    turn(0)
    first = used()
    for index in range(5000):
        turn(index % 1000)
    after = used()
    grown = [later - earlier for earlier, later in zip(before, after)]
    if BACKEND == "mpienv":
        assert after[0] == first[0], (first, after)
        # One for each direction, and one that wakes them.
        assert grown[0] <= 6 and grown[1] <= 3 and grown[2] < 16 << 20, grown
    return f"{grown[0]} descriptors, {grown[1]} threads, {grown[2] >> 10} KiB more after 10,000 messages with 1,000 tags"


def few_descriptors(rank, size):
    """1,000 tags with 100 descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    tags_of = range(1000)
    works = [dist.isend(message(rank, tag, 0), rank ^ 1, tag=tag) for tag in tags_of]
    for tag in reversed(tags_of):
        check(recv(rank ^ 1, tag), rank ^ 1, tag, 0)
    for work in works:
        work.wait()


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


CASES = {
    function.__name__: (function, size)
    for function, size in (
        (tags, 3), (of_device, 2), (large, 2), (threads, 2), (batch, 4), (full, 4), (full_for_good, 4),
        (any_rank, 4), (any_rank_again, 2), (any_rank_left, 4), (any_rank_gone, 2), (any_rank_late, 4), (any_rank_ended, 4),
        (length, 4), (shorter, 2), (queued_length, 4), (own, 2), (killed_before, 4), (killed_meanwhile, 4), (killed_waiting, 4), (killed_within, 4),
        (killed_queued, 4), (left, 4), (forked, 4), (aborted, 4), (destroyed, 4), (waited, 4), (timeouts, 4), (again, 4), (cost, 2), (few_descriptors, 2),
    )
}
# Ranks that the parent ends once the others are through, or that end themselves.
ENDED = {
    "killed_before": {3}, "killed_meanwhile": {3}, "killed_waiting": {3}, "killed_within": {3}, "killed_queued": {3},
    "left": {3}, "full_for_good": {3}, "forked": {3}, "aborted": {0}, "destroyed": {1, 3}, "timeouts": {3},
    "any_rank_left": {1, 2, 3}, "any_rank_gone": {1}, "any_rank_late": {1, 3}, "any_rank_ended": {1, 2, 3},
}


def run_rank(case, rank, size, port, answer):
    torch.set_num_threads(1)
    function = CASES[case][0]
    try:
        port = int(os.read(port, 16))
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        timeout = datetime.timedelta(seconds=TIMEOUT)
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=timeout)
        dist.barrier()
        said = function(rank, size, store) if function is again else function(rank, size)
        os.write(answer, f"{json.dumps([rank, True, said])}\n".encode())
        # Those that name a rank need this one until they have done so.
        if case in ENDED or case == "waited":
            sleep_forever()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        os.write(answer, f"{json.dumps([rank, False, traceback.format_exc()])}\n".encode())
        os._exit(1)
    os._exit(0)


def run(case):
    """Runs a case, and returns what is wrong."""
    size = CASES[case][1]
    (listens, answers), (port, says) = os.pipe(), os.pipe()
    ranks = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os.close(listens)
            os.setpgid(0, ranks[0] if ranks else 0)
            run_rank(case, rank, size, port, answers)
        ranks.append(child)
        os.setpgid(child, ranks[0])
    os.close(answers)
    # It has threads, which a forked process would lack. It is not a rank's, because ranks die.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(says, f"{store.port:16}".encode() * size)
    expected = set(range(size)) - ENDED.get(case, set())
    said, deadline, rest = {}, time.monotonic() + 2 * TIMEOUT * SLACK, b""
    os.set_blocking(listens, False)
    while expected - said.keys() and time.monotonic() < deadline and all(is_fine for is_fine, _ in said.values()):
        try:
            part = os.read(listens, 1 << 16)
        except BlockingIOError:
            part = None
        if part == b"":
            break
        *lines, rest = (rest + (part or b"")).split(b"\n")
        said.update({rank: (is_fine, text) for rank, is_fine, text in map(json.loads, lines)})
        time.sleep(0.01)
    is_over = case not in ENDED and case != "waited" and all(is_fine for is_fine, _ in said.values())
    if is_over and not expected - said.keys():
        for rank in ranks:
            os.waitpid(rank, 0)
    else:
        # Also what a rank has forked.
        os.killpg(ranks[0], signal.SIGKILL)
        for rank in ranks:
            os.waitpid(rank, 0)
    os.close(listens)
    missing = sorted(expected - said.keys())
    wrong = [f"rank {rank} did not end" for rank in missing]
    wrong += [f"rank {rank}: {text}" for rank, (is_fine, text) in sorted(said.items()) if not is_fine]
    for rank, (is_fine, text) in sorted(said.items()):
        if is_fine and text:
            print(f"   rank {rank}: {text}", flush=True)
    return wrong


def main():
    failed = []
    for case in [word for word in sys.argv[1:] if not word.startswith("-")] or CASES:
        sys.stdout.flush()
        if os.fork() == 0:
            begun = time.monotonic()
            wrong = run(case)
            print(f"{case}: {'wrong' if wrong else 'ok'} ({time.monotonic() - begun:.1f} s)", *wrong, sep="\n   ", flush=True)
            os._exit(bool(wrong))
        if os.wait()[1]:
            failed.append(case)
    sys.exit(f"wrong: {', '.join(failed)}" if failed and BACKEND == "mpienv" else 0)


if __name__ == "__main__":
    main()
