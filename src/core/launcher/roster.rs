//! Where each rank is, as a list of all ranks says.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::launcher::placement::Placement;
use crate::value::sourced::by;

/// One rank in a list.
#[derive(Clone, Copy)]
pub(super) struct Seat<'a> {
    pub host: &'a str,
    /// What numbers the ranks of a host: a port, or the number of a device.
    pub order: u32,
}

impl Placement {
    /// Adds the place on the node, and the nodes, as a list of all ranks in rank order shows them.
    pub(super) fn with_roster(self, source: &str, seats: &[Seat<'_>]) -> Result<Placement, Error> {
        let rank = self.rank.value as usize;
        let Some(own) = seats.get(rank) else { return Ok(self) };
        let (mut local_rank, mut local_size) = (0, 0);
        let mut nodes = Vec::new();
        let mut numbers = BTreeMap::new();
        for (index, seat) in seats.iter().enumerate() {
            let new = nodes.len() as u32;
            if *numbers.entry(seat.host).or_insert(new) == new {
                nodes.push(seat.host);
            }
            if seat.host == own.host {
                local_size += 1;
                local_rank += u32::from((seat.order, index) < (own.order, rank));
            }
        }
        let known = |number| by(source.to_owned(), Some(number));
        let placement = self.with_local(known(local_rank), known(local_size))?;
        let node = numbers.get(own.host).copied();
        let count = nodes.len() as u32;
        let placement = placement.with_nodes(by(source.to_owned(), node), known(count));
        Ok(placement.with_hosts(source.to_owned(), nodes))
    }
}
