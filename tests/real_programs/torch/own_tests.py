"""Runs PyTorch's own tests of process groups over gloo and over mpienv, and lists those that only gloo passes.

    own_tests.py [--ranks N] [--only WORD...]    WORD is a part of a test's name

The tests are those that PyTorch's wheel has for every backend (torch.testing._internal.distributed.distributed_test).
They think that they run over gloo, so that none is left out because of the backend's name. Fails if a test that gloo
passes fails over mpienv, unless KNOWN says why. Needs the package expecttest.
"""
import argparse
import os
import sys
import tempfile
import time
import unittest

# Tests that gloo passes and mpienv does not, by name, each with the reason.
KNOWN = {}


def import_tests(ranks):
    """The module of the tests, which reads its settings when it is imported."""
    folder = tempfile.TemporaryDirectory()
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder.name, name))
    # The tests limit how long a test takes, and a machine under load takes longer.
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "600")
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), TEMP_DIR=folder.name)
    from torch.testing._internal.distributed import distributed_test

    return distributed_test, folder


def class_of(module):
    import torch

    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # The ranks need not import PyTorch, which takes longer than most tests.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _barrier(self, *arguments, timeout=300, **more):
            super()._barrier(*arguments, timeout=timeout, **more)

    return Tests


class Result(unittest.TestResult):
    """What became of each test, by name."""

    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.left_out = [], {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def addSuccess(self, test):
        self.passed.append(name_of(test))
        self.say(test, "passed")

    def addFailure(self, test, error):
        self.failed[name_of(test)] = self._exc_info_to_string(error, test)
        self.say(test, "failed")

    addError = addFailure

    def addSkip(self, test, reason):
        self.left_out[name_of(test)] = reason

    def say(self, test, what):
        print(f"{name_of(test)}: {what} in {time.monotonic() - self.begun:.1f} s", file=sys.stderr, flush=True)


def name_of(test):
    return test.id().rpartition(".")[2]


def run(module, backend, words):
    module.BACKEND = backend
    tests = class_of(module)
    names = unittest.TestLoader().getTestCaseNames(tests)
    chosen = [name for name in names if not words or any(word in name for word in words)]
    result = Result()
    unittest.TestSuite(tests(name) for name in chosen).run(result)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    module, folder = import_tests(arguments.ranks)
    results = {}
    with folder:
        for backend in ("gloo", "mpienv"):
            result = results[backend] = run(module, backend, arguments.only)
            counts = f"{len(result.passed)} passed, {len(result.failed)} failed, {len(result.left_out)} left out"
            print(f"{arguments.ranks} ranks over {backend}: {counts}", flush=True)
    gloo, ours = results["gloo"], results["mpienv"]
    unknown = False
    for name in gloo.passed:
        if name in ours.passed:
            continue
        why = KNOWN.get(name)
        unknown |= why is None
        print(f"only gloo passes {name}: {why or ours.failed.get(name) or ours.left_out[name]}")
    for name in ours.passed:
        if name not in gloo.passed:
            print(f"only mpienv passes {name}: {gloo.failed.get(name) or gloo.left_out[name]}")
    sys.exit(unknown)


if __name__ == "__main__":
    main()
