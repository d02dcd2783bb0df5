//! A group of connected ranks: all or some of the job's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::peer::{Fault, Transfer};
use super::transfer::{Beside, Exchange, Links, Pair};
use crate::call::{Call, Difference, Message};
use crate::error::{CollectiveError, Result};
use crate::transport::{Connection, Received, Sent};

/// The ranks of a group, by place. A member's index among the links is its rank in the world.
#[derive(Debug)]
pub(crate) struct Members {
    /// Shared by all groups of this rank. Any two ranks make their common calls in the same order,
    /// in whichever groups.
    links: Arc<Mutex<Links>>,
    /// The world ranks of the group, by place.
    members: Vec<usize>,
    /// The numbers in the job of the ranks of the group whose calls these are, for errors.
    numbers: Arc<[u32]>,
    /// The number of the last transfer.
    number: u32,
    /// The number of the next message between two of the ranks: it counts the calls of the group,
    /// so that ranks notice that a message and a call are in another order.
    of_messages: u32,
    /// What `of_messages` was before the first call.
    first: u32,
}

impl Members {
    /// All ranks.
    pub(super) fn world(links: Links) -> Members {
        let members = (0..links.size()).collect();
        let numbers = (0..links.size() as u32).map(|rank| links.name(rank)).collect();
        let links = Arc::new(Mutex::new(links));
        Members { links, members, numbers, number: 0, of_messages: 0, first: 0 }
    }

    /// A group of the members at the places `chosen`, in that order. All of them must pass the same
    /// `color`.
    pub(super) fn part(&self, chosen: &[usize], color: u32) -> Members {
        let members = chosen.iter().map(|&place| self.members[place]).collect();
        let numbers = chosen.iter().map(|&place| self.numbers[place]).collect();
        // Far from the numbers of other groups, so that a call on the wrong group is noticed.
        let number = self
            .number
            .wrapping_add(color.wrapping_add(1).wrapping_mul(0x9e37_79b1))
            .rotate_left(16);
        let first = number;
        let links = Arc::clone(&self.links);
        Members { links, members, numbers, number, of_messages: first, first }
    }

    /// The same members, which make the calls of all of `group` together with others.
    pub(super) fn within(mut self, group: &Members) -> Members {
        self.numbers = Arc::clone(&group.numbers);
        self
    }

    /// The links for a call of this group. A panic in another thread leaves them as usable as an
    /// error does.
    pub(crate) fn links(&self) -> MutexGuard<'_, Links> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&links.group, &self.numbers) {
            links.group = Arc::clone(&self.numbers);
        }
        links
    }

    /// The number in the job of the member at `place`.
    pub(crate) fn name(&self, place: u32) -> u32 {
        self.numbers.get(place as usize).copied().unwrap_or(place)
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// Sends and receives all at once, as part of a call. `by_place` has an entry for each member;
    /// this rank's own counts for nothing.
    pub(crate) fn transfer(&mut self, call: Call, mut by_place: Vec<Exchange<'_>>) -> Result<()> {
        self.number = self.number.wrapping_add(1);
        let transfer = Transfer { number: self.number, call: call.in_job(&self.numbers) };
        let mut links = self.links();
        if self.members.iter().copied().eq(0..links.size()) {
            return links.transfer(transfer, &mut by_place, None);
        }
        let mut by_rank: Vec<_> = (0..links.size()).map(|_| Exchange::default()).collect();
        for (&member, exchange) in self.members.iter().zip(by_place) {
            by_rank[member] = exchange;
        }
        links.transfer(transfer, &mut by_rank, None)
    }

    /// Notes that the group has made `made` calls before the one that comes.
    pub(super) fn note(&mut self, made: u32) {
        // A rank that sends a message with this number has not made the call.
        self.links().watched = Some(self.first.wrapping_add(made));
        self.of_messages = self.first.wrapping_add(made).wrapping_add(1);
    }

    /// Sends a message to a member and receives one from another, or does one of both. Meanwhile
    /// messages may pass by other means.
    pub(crate) fn pass(
        &mut self,
        send: Sent<'_>,
        receive: Received<'_>,
        beside: Option<&mut Beside<'_>>,
    ) -> Result<()> {
        let mut links = self.links();
        let mut by_rank: Vec<_> = (0..links.size()).map(|_| Exchange::default()).collect();
        let mut call = Call::BARRIER;
        let mut add = |other: u32, [said, heard, answered]: [Call; 3], exchange| {
            let [said, heard, answered] =
                [said, heard, answered].map(|call| call.in_job(&self.numbers));
            let pair = Some(Pair { said, heard, answered });
            by_rank[self.members[other as usize]] = Exchange { pair, ..exchange };
            call = answered;
        };
        match (send, receive) {
            // Each of two ranks says what it receives: its own message is the answer.
            (Some((to, bytes)), Some((from, into))) if to.other == from.other => {
                add(to.other, [from.said, to.heard, to.said], Exchange::both(bytes, into));
            }
            // The rank that receives answers with an empty frame.
            (send, receive) => {
                if let Some((Message { other, said, heard }, bytes)) = send {
                    add(other, [said, heard, said], Exchange::both(bytes, &mut []));
                }
                if let Some((Message { other, said, heard }, into)) = receive {
                    add(other, [said, heard, said], Exchange::both(&[], into));
                }
            }
        }
        let transfer = Transfer { number: self.of_messages, call };
        let Some(beside) = beside else { return links.transfer(transfer, &mut by_rank, None) };
        let mut beside = || {
            beside().map_err(|Difference { rank, found, own }| Difference {
                rank: self.members[rank],
                found: found.map(|found| found.in_job(&self.numbers)),
                own: own.in_job(&self.numbers),
            })
        };
        links.transfer(transfer, &mut by_rank, Some(&mut beside))
    }

    /// Waits for the next message of the member at `place`, for at most `longest`. Returns its call.
    pub(super) fn next_message(&self, place: usize, longest: Duration) -> Result<Call> {
        self.links().next_message(self.members[place], self.of_messages, longest)
    }

    /// Whether a message of the member at `place` has come.
    pub(super) fn has_message(&self, place: usize) -> Result<bool> {
        self.links().has_message(self.members[place], self.of_messages)
    }

    /// The connections to the members, by place.
    pub(crate) fn connections(&self) -> Vec<Option<Connection>> {
        let links = self.links();
        self.members.iter().map(|&member| links.connection(member)).collect()
    }

    /// Gives up because the member at `place` brought what this rank cannot take.
    pub(crate) fn refuse(&self, place: usize, reason: String) -> CollectiveError {
        self.give_up_on(place, Fault::Lost(reason))
    }

    /// Gives up because what the member at `place` sent cannot be read.
    pub(crate) fn unreadable(&self, place: usize) -> CollectiveError {
        self.give_up_on(place, Fault::unreadable())
    }

    fn give_up_on(&self, place: usize, fault: Fault) -> CollectiveError {
        self.links().give_up_on(self.members[place], fault)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        // Another group, which shares the connections, may outlast the panic. If it is in a call
        // in another thread, that may last, and in a forked child forever.
        if std::thread::panicking() {
            match self.links.try_lock() {
                Ok(mut links) => links.leave_panicking(),
                Err(TryLockError::Poisoned(links)) => links.into_inner().leave_panicking(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }
}

/// What a transport needs that exchanges bytes by other means, such as shared memory, and has the
/// connections to notice lost ranks.
impl Members {
    /// Begins a call. Fails if an earlier call failed, or if a rank was lost after its part in the
    /// last call.
    pub(crate) fn begin(&self, call: Call) -> Result<()> {
        self.links().begin(call.in_job(&self.numbers))
    }

    /// Checks for lost ranks, while this rank has been waiting since `since` for the members at
    /// `places`. If what it waits for `has_come`, this call goes on and the next one fails.
    pub(crate) fn check_while_waiting(
        &self,
        places: &[usize],
        since: Instant,
        has_come: &dyn Fn() -> bool,
    ) -> Result<()> {
        let awaited: Vec<usize> = places.iter().map(|&place| self.members[place]).collect();
        self.links().check_while_waiting(&awaited, since, has_come)
    }

    /// Gives up on the member at `place`, after waiting for it as long as a call may.
    pub(crate) fn late(&self, place: usize) -> CollectiveError {
        let timeout = self.links().timeout;
        self.late_after(place, timeout)
    }

    /// Gives up on the member at `place`, which has not come within the time that this rank
    /// `waited`.
    pub(crate) fn late_after(&self, place: usize, waited: Duration) -> CollectiveError {
        self.links().attribute_timeout(self.members[place], None, waited)
    }

    /// Gives up because the member at `place` made another call; `None` if it cannot be read.
    pub(crate) fn differs(&self, place: usize, found: Option<Call>) -> CollectiveError {
        let found = found.map(|found| found.in_job(&self.numbers));
        self.give_up_on(place, found.map_or_else(Fault::unreadable, Fault::Differs))
    }
}
