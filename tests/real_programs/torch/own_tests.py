"""Runs PyTorch's own tests of process groups over gloo and over mpienv, and lists those that only one of them passes.

    own_tests.py [--ranks N] [--only WORD...]    WORD is a part of a test's name

The tests are those that PyTorch's wheel has for every backend (torch.testing._internal.distributed.distributed_test).
They choose by the backend's name which of them run. Here, those run that are for gloo or for MPI, over either backend.
Fails if a test that gloo passes fails over mpienv, unless KNOWN says why. Needs the package expecttest.
"""
import argparse
import importlib
import os
import sys
import tempfile
import time
import unittest
from importlib.metadata import version

BACKENDS = ("gloo", "mpienv")

# Tests that gloo passes and mpienv does not, by name, each with the reason.
_WORDS = "it looks for words of gloo's error; mpienv's names the ranks that did not arrive, and PyTorch before 2.14 knows only gloo's"
KNOWN = {
    "test_barrier_timeout_full_group": _WORDS,
    "test_monitored_barrier_gloo": _WORDS,
    "test_monitored_barrier_gloo_rank_0_timeout": _WORDS,
    "test_monitored_barrier_gloo_subgroup": _WORDS,
}


VERSION = tuple(map(int, version("torch").split(".")[:2]))
if VERSION >= (2, 14):
    KNOWN["test_ddp_logging_data_cpu"] = "PyTorch's log calls every backend that is not its own custom"
if VERSION < (2, 6):
    names = "barrier_timeout_group", "monitored_barrier_failure_order", "monitored_barrier_wait_all_ranks"
    KNOWN.update({f"test_{name}": _WORDS for name in names})


class Name(str):
    """The name of a backend, which is also equal to that of the backend for which a test is written."""

    def __new__(cls, name, written_for):
        self = super().__new__(cls, name)
        self.written_for = written_for
        return self

    def __eq__(self, other):
        return other in (str(self), self.written_for)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def set_up(ranks, folder):
    """The variables that the tests read."""
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder, name))
    os.environ.update(WORLD_SIZE=str(ranks), TEMP_DIR=folder)
    # Only a hang takes as long, also on a machine under load.
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "600")


def tests_for(backend):
    """The module of the tests, and the class of those that are for a backend of this name."""
    os.environ["BACKEND"] = backend
    name = "torch.testing._internal.distributed.distributed_test"
    # The module reads the name when it is imported.
    module = importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)
    import mpienv_rs.torch
    import torch

    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forked ranks need not import PyTorch, which takes longer than most tests.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _barrier(self, *arguments, timeout=600, **more):
            super()._barrier(*arguments, timeout=timeout, **more)

    return module, Tests


class Result(unittest.TestResult):
    """The tests that passed, and why the others failed or were left out, by name."""

    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.left_out = [], {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def addSuccess(self, test):
        self.passed.append(test._testMethodName)
        self.say(test, "passed")

    def addFailure(self, test, error):
        self.failed[test._testMethodName] = self._exc_info_to_string(error, test)
        self.say(test, "failed")

    addError = addFailure

    def addSkip(self, test, reason):
        self.left_out[test._testMethodName] = reason

    def say(self, test, what):
        print(f"{test._testMethodName}: {what} in {time.monotonic() - self.begun:.1f} s", file=sys.stderr, flush=True)


def run(words):
    """The results over each backend, and the number of tests that there are."""
    results, begun, there = {backend: Result() for backend in BACKENDS}, set(), set()
    for written_for in ("gloo", "mpi"):
        module, tests = tests_for(written_for)
        names = [name for name in unittest.TestLoader().getTestCaseNames(tests)
                 if not words or any(word in name for word in words)]
        there.update(names)
        names = [name for name in names
                 if name not in begun and not getattr(getattr(tests, name), "__unittest_skip__", False)]
        begun.update(names)
        for backend, result in results.items():
            module.BACKEND = Name(backend, written_for)
            unittest.TestSuite(tests(name) for name in names).run(result)
    return results, len(there)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        set_up(arguments.ranks, folder)
        results, there = run(arguments.only)
    gloo, ours = (results[backend] for backend in BACKENDS)
    unknown = False
    for name in gloo.passed:
        if name not in ours.passed:
            unknown |= name not in KNOWN
            print(f"only gloo passes {name}: {KNOWN.get(name) or ours.failed.get(name) or ours.left_out[name]}")
    for name in KNOWN:
        if name in ours.passed:
            unknown = True
            print(f"mpienv passes {name}, and KNOWN says that it does not")
    for name in ours.passed:
        if name not in gloo.passed:
            print(f"only mpienv passes {name}: {gloo.failed.get(name) or gloo.left_out[name]}")
    for backend, result in results.items():
        passed, failed = len(result.passed), len(result.failed)
        left_out = there - passed - failed
        print(f"{arguments.ranks} ranks over {backend}: {passed} passed, {failed} failed, {left_out} left out")
    sys.exit(unknown)


if __name__ == "__main__":
    main()
