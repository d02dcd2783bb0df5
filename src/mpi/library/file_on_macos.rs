//! The file names of MPI libraries on macOS.

pub(super) const OPEN_MPI: &str = "libmpi.40.dylib";
pub(super) const SPECTRUM: &str = "libmpi_ibm.3.dylib";
pub(super) const MPICH: [&str; 3] = ["libmpi.12.dylib", "libmpich.12.dylib", "libmpi_abi.1.dylib"];
