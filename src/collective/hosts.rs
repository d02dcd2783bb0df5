//! Finds out which ranks share a host, and connects them: above the transports, which it chooses.

use super::call::Call;
use super::error::Result;
use super::host_info::{HostInfo, have_a_core_each};
use super::shared::{Memory, Shared, slot_length};
use super::tcp::Tcp;
use super::transport::{Transport, gather_any};
use super::two_level::{Layout, TwoLevel};
use crate::value::printable::printable;

/// Shares memory among the ranks of `tcp` on each host. All ranks must call this.
pub(super) fn join(tcp: Tcp) -> Result<Box<dyn Transport>> {
    join_from(tcp, &HostInfo::own(None))
}

/// Shares memory among ranks that are threads of this process, if it can.
pub(super) fn join_here(ranks: Vec<Tcp>) -> Vec<Box<dyn Transport>> {
    let spins = have_a_core_each(&vec![HostInfo::own(None); ranks.len()]);
    match Memory::of_this_process(ranks.len()) {
        Ok(memories) => ranks
            .into_iter()
            .zip(memories)
            .map(|(tcp, memory)| Box::new(Shared::of(tcp.joined_by(join), memory, spins)) as _)
            .collect(),
        Err(error) => {
            let why = format!("memory cannot be shared: {error}");
            ranks.into_iter().map(|tcp| Box::new(tcp.because(&why)) as _).collect()
        }
    }
}

/// Like [`join`], with `info` as this rank's host.
pub(super) fn join_from(mut tcp: Tcp, info: &HostInfo) -> Result<Box<dyn Transport>> {
    if tcp.rank().size() == 1 {
        return Ok(Box::new(tcp));
    }
    let infos = gather_any(&mut tcp, Call::CONNECT, &info.encode())?;
    let infos = HostInfo::decode_all(&infos).map_err(|rank| tcp.members.unreadable(rank))?;
    // For each rank, the first rank on its host: an earlier one, or itself.
    let first = |(own, info): (usize, &HostInfo)| {
        infos[..own].iter().position(|other| info.is_with(other)).unwrap_or(own)
    };
    let firsts: Vec<usize> = infos.iter().enumerate().map(first).collect();
    let hosts = (0..).zip(&firsts).filter(|(rank, first)| rank == *first).count();
    let spins = have_a_core_each(&infos);
    if hosts == infos.len() {
        return Ok(Box::new(tcp));
    }
    if hosts == 1 {
        return Ok(match Shared::share(tcp.joined_by(join), spins)? {
            Ok(shared) => Box::new(shared),
            Err((tcp, why)) => Box::new(tcp.because(why)),
        });
    }
    if !firsts.is_sorted() {
        return Ok(Box::new(tcp.because("the ranks of a host do not follow each other")));
    }
    join_hosts(tcp, &firsts, hosts, spins)
}

/// Shares memory on each of several hosts. For each rank, `firsts` has the first on its host.
fn join_hosts(
    mut tcp: Tcp,
    firsts: &[usize],
    hosts: usize,
    spins: bool,
) -> Result<Box<dyn Transport>> {
    let own = tcp.rank().index() as usize;
    let first = firsts[own];
    let host = tcp.part(first as u32, 0)?.within(&tcp);
    let among_firsts = tcp.part(u32::from(first != own), 0)?.within(&tcp);
    let sharing = match host.rank().size() {
        1 => None,
        _ => Some(Shared::share(host.joined_by(join), spins)?),
    };
    // If one host cannot share memory, no host does: all ranks must use the same transports.
    let why = match &sharing {
        Some(Err((_, why))) => why,
        _ => "",
    };
    let reasons = gather_any(&mut tcp, Call::CONNECT, why.as_bytes())?;
    if let Some(why) = reasons.iter().find(|reason| !reason.is_empty()) {
        return Ok(Box::new(tcp.because(printable(why))));
    }
    let shared = sharing.and_then(Result::ok);
    let layout = Layout {
        place: (0..first).filter(|&rank| firsts[rank] == rank).count(),
        hosts,
        slot: shortest_slot(firsts),
    };
    let among_firsts = (first == own).then_some(among_firsts);
    Ok(Box::new(TwoLevel::new(tcp.joined_by(join), shared, among_firsts, layout)))
}

/// The most bytes that a rank can publish in a round on every host. Neither the host of the most
/// ranks nor that of the fewest has the shortest slots at all times.
fn shortest_slot(firsts: &[usize]) -> usize {
    let hosts = firsts.chunk_by(|one, other| one == other);
    hosts.map(|ranks| slot_length(ranks.len())).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_fits_into_the_memory_of_every_host() {
        let sizes = [1, 2, 300, 1500, 6000];
        for pair in sizes.into_iter().flat_map(|one| sizes.map(|other| [one, other])) {
            let firsts = [vec![0; pair[0]], vec![pair[0]; pair[1]]].concat();
            let slot = shortest_slot(&firsts);
            assert!(slot > 0 && pair.iter().all(|&ranks| slot <= slot_length(ranks)), "{pair:?}");
        }
    }
}
