# mpienv is not published yet. From a folder with this project:
#   spack dev-build --source-path . mpienv@0.1.0
from spack_repo.builtin.build_systems.cargo import CargoPackage

from spack.package import *


class Mpienv(CargoPackage):
    """Gives each process its rank, world size, local rank and master address under any cluster
    launcher: Open MPI, MPICH, Intel MPI, Slurm, Flux, torchrun, Kubernetes and others."""

    # There is nothing to download.
    has_code = True
    manual_download = True

    license("MIT OR Apache-2.0")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")

    build_args = ["--locked", "--features", "cli"]

    @run_after("install")
    def install_manual_page_and_completions(self):
        install_tree(join_path(self.stage.source_path, ".dist", "data", "share"), self.prefix.share)
        mkdirp(self.prefix.share.doc.mpienv)
        for name in ("LICENSE-MIT", "LICENSE-APACHE"):
            install(join_path(self.stage.source_path, name), self.prefix.share.doc.mpienv)
