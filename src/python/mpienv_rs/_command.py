"""Where the command is that this package brings."""

from __future__ import annotations

import functools
import os
import shutil
import sysconfig
from typing import Iterator


class Error(Exception):
    """Why the place of this process is not known: the text of the command, with the remedy."""

    # A traceback shows the name by which programs import it.
    __module__ = "mpienv_rs"


# This package is not on PyPI.
_INSTALL = "run `pip install --force-reinstall ./src/python` in the project's folder, or install its wheel again"


@functools.lru_cache(maxsize=None)
def find_command() -> str:
    """The path of the command ``mpienv`` of this package.

    PyPI's ``mpienv`` is another project that installs a command of the same name. That one is never run.
    """
    other = None
    for path in _candidates():
        if not os.path.isfile(path):
            continue
        if _is_ours(path):
            return path
        other = other or path
    if other is None:
        raise Error(f"the command mpienv is not installed; {_INSTALL}")
    raise Error(
        f"{other} is the command of PyPI's mpienv, which is another project; run `pip uninstall mpienv`, then {_INSTALL}"
    )


def _candidates() -> Iterator[str]:
    name = "mpienv" + (sysconfig.get_config_var("EXE") or "")
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield os.path.join(sysconfig.get_path("scripts"), name)
    # `pip install --user`, and `pip install --target`.
    scheme = f"{os.name}_user"
    if scheme in sysconfig.get_scheme_names():
        yield os.path.join(sysconfig.get_path("scripts", scheme), name)
    yield os.path.join(here, "bin", name)
    # This package may be that of another environment, which PYTHONPATH names.
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(here))), "bin", name)
    found = shutil.which(name)
    if found:
        yield found


def _is_ours(path: str) -> bool:
    # The other project's command is a script, and this one is a program.
    with open(path, "rb") as file:
        return file.read(2) != b"#!"
