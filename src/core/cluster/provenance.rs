//! Where each value of a [`ClusterInfo`] comes from.

use std::borrow::Cow;

use serde::Serialize;

use crate::cluster::discover::surroundings::Surroundings;
use crate::cluster::info::ClusterInfo;
use crate::launcher::placement::LaunchStyle;
use crate::value::sourced::{NOT_PROVIDED, source_of};

impl ClusterInfo {
    /// Returns the source of each value.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        let place = &self.placement;
        let Surroundings { nccl, device_index, restart_count, platform, .. } = &self.surroundings;
        Provenance {
            launcher: place.launcher.source.clone(),
            rank: place.rank.source.clone(),
            world_size: place.size.source.clone(),
            local_rank: source_of(&place.local_rank),
            local_world_size: source_of(&place.local_size),
            node_rank: source_of(&place.node_rank),
            node_count: source_of(&place.node_count),
            launch_style: match place.style() {
                LaunchStyle::Alone => "the world size is 1",
                LaunchStyle::SingleNode => "the local size is the world size",
                LaunchStyle::PerNode => "the local size is 1",
                LaunchStyle::PerProcess => "the local size is below the world size",
                LaunchStyle::Unknown => NOT_PROVIDED,
            }
            .into(),
            master_addr: match &self.meeting.addr {
                Ok(host) => host.source.clone(),
                Err(_) => "not named by anything".into(),
            },
            master_port: self.meeting.port.source.clone(),
            nccl_socket_ifname: nccl.ifname.source.clone(),
            hosts: place.hosts.source.clone(),
            device_index: device_index.source.clone(),
            restart_count: restart_count.source.clone(),
            platform: platform.source.clone(),
        }
    }
}

/// The source of each value of a [`ClusterInfo`]: the name of a variable, or a description of a
/// rule.
///
/// ```
/// use mpienv::{ClusterInfo, Provenance};
///
/// let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29500")];
/// let info = ClusterInfo::from_vars(vars)?;
/// let provenance: Provenance = info.provenance();
/// assert_eq!(provenance.master_port, "MASTER_PORT");
/// assert_eq!(provenance.master_addr, "all ranks are on this node");
/// // Without MASTER_PORT, this job of one rank would use a port of its own.
/// assert!((20000..30000).contains(&info.default_master_port().get()));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each field is the source of the value of its name")]
pub struct Provenance {
    pub launcher: Cow<'static, str>,
    pub rank: Cow<'static, str>,
    pub world_size: Cow<'static, str>,
    pub local_rank: Cow<'static, str>,
    pub local_world_size: Cow<'static, str>,
    pub node_rank: Cow<'static, str>,
    pub node_count: Cow<'static, str>,
    pub launch_style: Cow<'static, str>,
    pub master_addr: Cow<'static, str>,
    pub master_port: Cow<'static, str>,
    pub nccl_socket_ifname: Cow<'static, str>,
    pub hosts: Cow<'static, str>,
    pub device_index: Cow<'static, str>,
    pub restart_count: Cow<'static, str>,
    pub platform: Cow<'static, str>,
}
