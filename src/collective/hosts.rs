//! Finds out which ranks share a host, and connects them.

use super::error::CollectiveError;
use super::tcp::Tcp;
use super::transport::Transport;

/// Shares memory among the ranks of `tcp` on each host. All ranks must call this.
#[cfg(target_os = "linux")]
pub(super) fn join(tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
    join_from(tcp, &super::host_info::HostInfo::own(None))
}

/// Like [`join`], with `info` as this rank's host.
#[cfg(target_os = "linux")]
pub(super) fn join_from(
    mut tcp: Tcp,
    info: &super::host_info::HostInfo,
) -> Result<Box<dyn Transport>, CollectiveError> {
    use super::call::Call;
    use super::host_info::{self, HostInfo};
    use super::shared::Shared;
    use super::two_level::TwoLevel;

    let (own, size) = (tcp.rank().index() as usize, tcp.rank().size());
    if size == 1 {
        return Ok(Box::new(tcp));
    }
    let info = serde_json::to_vec(info).unwrap_or_default();
    let all = tcp.gather(Call::CONNECT, &info)?;
    // All ranks run the same program. If one rank's data cannot be parsed, its host is unknown.
    let all: Vec<HostInfo> =
        all.iter().map(|info| serde_json::from_slice(info).unwrap_or_default()).collect();
    let firsts = firsts(&all, |one, other| one.is_with(other));
    let hosts = (0..).zip(&firsts).filter(|(rank, first)| rank == *first).count();
    if hosts == all.len() {
        return Ok(Box::new(tcp));
    }
    let spins = host_info::have_a_core_each(&all);
    if hosts == 1 {
        return Ok(match Shared::new(tcp, spins)? {
            Ok(shared) => Box::new(shared),
            Err((tcp, why)) => Box::new(tcp.because(why)),
        });
    }
    if !firsts.is_sorted() {
        return Ok(Box::new(tcp.because("the ranks of a host do not follow each other")));
    }
    let first = firsts[own];
    let largest = firsts.chunk_by(|one, other| one == other).map(<[usize]>::len).max().unwrap_or(1);
    let place = (0..first).filter(|&rank| firsts[rank] == rank).count();
    let host = tcp.part(first as u32, 0)?;
    let among_firsts = tcp.part(u32::from(first != own), 0)?;
    let shared =
        if host.rank().size() == 1 { Ok(None) } else { Shared::new(host, spins)?.map(Some) };
    // If one host cannot share memory, no host does: all ranks must use the same transports.
    let why = shared.as_ref().err().map(|(_, why)| why.clone()).unwrap_or_default();
    let reasons = tcp.gather(Call::CONNECT, why.as_bytes())?;
    match (shared, reasons.iter().find(|reason| !reason.is_empty())) {
        (Ok(shared), None) => Ok(Box::new(TwoLevel::new(
            tcp,
            shared,
            (first == own).then_some(among_firsts),
            place,
            hosts,
            largest,
        ))),
        (_, why) => Ok(Box::new(
            tcp.because(crate::value::printable::printable(why.map_or(&[], Vec::as_slice))),
        )),
    }
}

/// Returns, for each rank, the first rank on its host.
#[cfg(target_os = "linux")]
fn firsts<T>(all: &[T], is_with: impl Fn(&T, &T) -> bool) -> Vec<usize> {
    all.iter()
        .map(|one| all.iter().position(|other| is_with(one, other)).unwrap_or_default())
        .collect()
}

/// Returns `tcp` as it is: shared memory needs Linux.
#[cfg(not(target_os = "linux"))]
pub(super) fn join(tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
    Ok(Box::new(tcp))
}
