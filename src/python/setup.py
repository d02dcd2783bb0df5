"""Compiles what the wheel carries beside the module: the command and the library of the backend for PyTorch.

pyproject.toml has the rest. `--config-settings=--build-option=--cargo=WORDS` compiles with other words of `cargo build`.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Of setuptools, which has no class of its own for it.
from distutils.command.build_scripts import build_scripts  # isort: skip

HERE = Path(__file__).resolve().parent
# An sdist carries the project's files; in a checkout, they are around this folder.
PROJECT = HERE / "project" if (HERE / "project").is_dir() else HERE.parent.parent
COMMAND, LIBRARY = "mpienv", "libmpienv_torch.so"
SHARE = {
    "man/man1": "mpienv.1",
    "bash-completion/completions": "mpienv",
    "zsh/site-functions": "_mpienv",
    "fish/vendor_completions.d": "mpienv.fish",
}


def stop(why):
    raise SystemExit(f"mpienv-rs: {why}")


def manifest(name):
    """A value of Cargo.toml."""
    file = PROJECT / "Cargo.toml"
    if not file.is_file():
        stop(f"no {file}: build src/python inside the whole project, with pip 21.3 or newer, or from an sdist")
    return re.search(rf'^{name} = "(.*)"$', file.read_text(), re.MULTILINE)[1]


@functools.lru_cache(maxsize=None)
def compiled(words):
    """The paths of the command and the library, which `cargo build` compiles."""
    needs = f"it takes Rust {manifest('rust-version')} or newer (https://rustup.rs) and a C compiler to build mpienv-rs"
    cargo, compiler = os.environ.get("CARGO", "cargo"), os.environ.get("RUSTC", "rustc")
    for program in (cargo, compiler):
        if shutil.which(program) is None:
            stop(f"{program} is not on PATH: {needs}; a wheel built elsewhere installs without them")
    call = [cargo, "build", "--locked", "--message-format", "json-render-diagnostics", *words.split()]
    done = subprocess.run(call, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        stop(f"`{' '.join(call)}` failed, as written above: {needs}")
    files = [file for line in done.stdout.splitlines() for file in json.loads(line).get("filenames", ())]
    found = {Path(file).name: file for file in files}
    for name in (COMMAND, LIBRARY):
        if name not in found:
            stop(f"`{' '.join(call)}` made no {name}")
    return found


class Binary(Distribution):
    def has_ext_modules(self):
        """The wheel is for one kind of machine."""
        return True


class Wheel(bdist_wheel):
    user_options = bdist_wheel.user_options + [("cargo=", None, "what to compile, in words of `cargo build`")]
    cargo = "--profile dist --package mpienv --package mpienv-torch --features mpienv/gpu"

    def run(self):
        # Before setuptools writes a page of its own.
        compiled(self.cargo)
        super().run()

    def get_tag(self):
        """For every Python. The C library must be as new as here, which pip then checks."""
        platform = super().get_tag()[2]
        names = os.confstr_names
        c_library = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in names else None
        if platform.startswith("linux_") and c_library:
            version = c_library.split()[1].replace(".", "_")
            platform = platform.replace("linux", f"manylinux_{version}")
        return "py3", "none", platform


class Module(build_py):
    def run(self):
        super().run()
        home = HERE if self.editable_mode else Path(self.build_lib)
        words = self.get_finalized_command("bdist_wheel").cargo
        shutil.copy(compiled(words)[LIBRARY], home / "mpienv_rs" / LIBRARY)


class Scripts(build_scripts):
    def run(self):
        words = self.get_finalized_command("bdist_wheel").cargo
        Path(self.build_dir).mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled(words)[COMMAND], self.build_dir)

    def get_source_files(self):
        return []


class Source(sdist):
    def make_release_tree(self, base_dir, files):
        # The others are setuptools' own, and the project's.
        super().make_release_tree(base_dir, [file for file in files if not file.startswith(("/", ".."))])
        call = ["git", "ls-files", "-z", "--", ".", ":!src/python"]
        try:
            listed = subprocess.run(call, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
        except (OSError, subprocess.CalledProcessError):
            listed = []
        if "Cargo.toml" not in listed:
            stop("an sdist carries what git tracks, and this folder is no checkout: build a wheel")
        for file in filter(None, listed):
            target = Path(base_dir, "project", file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / file, target, follow_symlinks=False)


with tempfile.TemporaryDirectory() as scratch:
    # What setuptools keeps in build/ would be in the next wheel too, even after its source is gone.
    setup(
        distclass=Binary,
        version=manifest("version"),
        scripts=[COMMAND],
        data_files=[
            (f"share/{folder}", [os.path.relpath(PROJECT / ".dist/data/share" / folder / file, HERE)])
            for folder, file in SHARE.items()
        ],
        cmdclass={"bdist_wheel": Wheel, "build_py": Module, "build_scripts": Scripts, "sdist": Source},
        options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
    )
