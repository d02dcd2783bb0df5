//! The file names of MPI libraries.

pub(super) const OPEN_MPI: &str = "libmpi.so.40";
pub(super) const SPECTRUM: &str = "libmpi_ibm.so.3";
pub(super) const MPICH: [&str; 3] = ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"];
