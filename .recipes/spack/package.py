# mpienv is not published yet. From a folder with this project:
#   spack dev-build --source-path . mpienv@0.1.0
# Or make the source file there, and install it:
#   git archive --prefix=mpienv-0.1.0/ --output=mpienv-0.1.0.tar.gz HEAD
#   spack install --no-checksum mpienv@0.1.0
import os

from spack_repo.builtin.build_systems.cargo import CargoPackage

from spack.package import *


class Mpienv(CargoPackage):
    """Gives each process its rank, world size, local rank and master address under any cluster
    launcher: Open MPI, MPICH, Intel MPI, Slurm, Flux, torchrun, Kubernetes and others."""

    # There is nothing to download.
    manual_download = True
    url = f"file://{os.getcwd()}/mpienv-0.1.0.tar.gz"

    license("MIT OR Apache-2.0")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")

    build_args = ["--locked", "--features", "gpu"]

    @run_after("install")
    def install_manual_page_completions_and_guide(self):
        source = self.stage.source_path
        install_tree(join_path(source, ".dist", "data", "share"), self.prefix.share)
        documents = self.prefix.share.doc.mpienv
        mkdirp(documents)
        for name in ("README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"):
            install(join_path(source, name), documents)
        # The pages link to each other, so each folder keeps its place.
        for folder in (("src", "guide"), ("examples",), (".recipes",)):
            install_tree(join_path(source, *folder), join_path(documents, *folder))
