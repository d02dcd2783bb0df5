//! What Lamellar's `shmem` backend reads.
//!
//! Its processes are on one node. Over several nodes, its `rofi` backend takes its place from the
//! launcher's PMI server.

use super::{Set, Target, Value, addition, master_port, rank, size};
use crate::cluster::info::ClusterInfo;
use crate::error::{Error, Reason};
use crate::launcher::lamellar::{BACKEND, JOB, RANK, SHMEM, SIZE};

const PAGE: &str = "[lamellae/shmem/shmem_comm.rs](https://github.com/pnnl/lamellar-runtime/blob/master/src/lamellae/shmem/\
                    shmem_comm.rs)";

pub(super) const SET: Set = Set {
    name: "lamellar",
    title: "Lamellar",
    note: "; all ranks must be on one node; remove /dev/shm/lamellar_* if an earlier job was killed",
    page: PAGE,
    additions: &[
        size(SIZE),
        rank(RANK),
        addition(
            JOB,
            "the master's port: the processes of a job share memory under this number",
            master_port,
        ),
        addition(BACKEND, "`shmem`, unless it is set", backend).on(
            "[env_var.rs](https://github.com/pnnl/lamellar-runtime/blob/master/src/env_var.rs)",
        ),
    ],
    ..Set::PLAIN
};

fn backend(info: &ClusterInfo) -> Value {
    if info.inherited.setting_text(BACKEND)?.is_some_and(|set| set != SHMEM) {
        return Ok(None);
    }
    if info.local_world_size() != Some(info.world_size()) && info.node_count() != Some(1) {
        let what = "all ranks on one node, where they share memory".to_owned();
        let remedy = "start all ranks on one node; or set LAMELLAR_BACKEND=rofi, which takes its place from the launcher's PMI";
        let program = Target::Lamellar.title();
        return Err(Error::new(Reason::ProgramNeeds { program, what }, remedy).of(BACKEND));
    }
    Ok(Some(SHMEM.to_owned()))
}
