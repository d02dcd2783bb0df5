//! What `jax.distributed.initialize` reads.
//!
//! Of its variables (JAX 0.10) only the coordinator's address is a fact that all ranks share; the
//! devices of a process, `JAX_LOCAL_DEVICE_IDS`, are left to JAX.

use super::Additions;

pub(super) const ADDITIONS: Additions = Additions {
    variables: &[("JAX_COORDINATOR_ADDRESS", |info| Ok(info.master_addr()?.with_port(info.master_port())))],
    unset: &[],
};
