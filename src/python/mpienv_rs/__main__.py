"""``python -m mpienv_rs`` is the command ``mpienv``."""

import os
import subprocess
import sys

from ._command import Error, find_command


def main() -> None:
    try:
        command = find_command()
    except Error as error:
        sys.exit(f"mpienv: {error}")
    words = [command, *sys.argv[1:]]
    if os.name == "posix":
        os.execv(command, words)
    sys.exit(subprocess.call(words))


if __name__ == "__main__":
    main()
