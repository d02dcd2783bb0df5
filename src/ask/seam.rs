//! What mpienv's other crates need of this one and programs do not. Any version may change it.

pub use crate::interface::{entries, nccl_takes, on_own_interfaces};
pub use crate::launcher::{
    Connection, Keep, ask_if_needed, has_left, keep_pmix, precludes_mpi, read_with_pmix, would_ask,
};
pub use crate::pmi::{Link, Question, inherited};
pub use crate::process::Owner;
pub use crate::program::{Helper, Printed};
pub use crate::route::{
    interfaces, is_bridge, is_link_local, look_up, names_of, resolve, with_own_addr,
};
