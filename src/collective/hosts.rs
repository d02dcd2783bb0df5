//! Which ranks share a host, and what joins them.

#[cfg(target_os = "linux")]
use super::call::Call;
use super::error::CollectiveError;
#[cfg(target_os = "linux")]
use super::host_info::{self, HostInfo};
#[cfg(target_os = "linux")]
use super::shared::Shared;
use super::tcp::Tcp;
use super::transport::Transport;

/// Shares memory among the ranks of `tcp` where that is possible; all of them call this.
#[cfg(target_os = "linux")]
pub(super) fn join(mut tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
    if tcp.rank().size() == 1 {
        return Ok(Box::new(tcp));
    }
    let own = serde_json::to_vec(&HostInfo::own(None)).unwrap_or_default();
    let all = tcp.gather(Call::ALL_GATHER, &own)?;
    // The same program wrote them. If one cannot be parsed, nothing is known about that rank.
    let all: Vec<HostInfo> = all.iter().map(|info| serde_json::from_slice(info).unwrap_or_default()).collect();
    if !all.iter().all(|info| info.is_with(&all[0])) {
        return Ok(Box::new(tcp));
    }
    Ok(match Shared::new(tcp, host_info::have_a_core_each(&all))? {
        Ok(shared) => Box::new(shared),
        Err((tcp, why)) => Box::new(tcp.because(why)),
    })
}

/// Shared memory needs Linux.
#[cfg(not(target_os = "linux"))]
pub(super) fn join(tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
    Ok(Box::new(tcp))
}
