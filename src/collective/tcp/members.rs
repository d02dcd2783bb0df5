//! A group of connected ranks: all or some of the job's.

use std::cell::RefCell;
use std::rc::Rc;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::peer::Transfer;
use super::transfer::Links;
use crate::collective::call::Call;
use crate::collective::error::CollectiveError;

/// The ranks of a group, by place. A member's index among the links is its rank in the world.
#[derive(Debug)]
pub(crate) struct Members {
    /// Shared by all groups of this rank. Any two ranks make their common calls in the same order,
    /// in whichever groups.
    links: Rc<RefCell<Links>>,
    /// The world ranks of the group, by place.
    members: Vec<usize>,
    /// The place of every world rank; `None` outside the group.
    places: Vec<Option<usize>>,
    /// The number of the last transfer.
    number: u32,
}

/// Receives from members, by place, and from no other rank.
struct OfMembers<'a, I> {
    places: &'a [Option<usize>],
    inbox: &'a mut I,
}

impl<I: Inbox> Inbox for OfMembers<'_, I> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.inbox.from(place(self.places, peer)?)
    }
}

fn place(places: &[Option<usize>], peer: usize) -> Option<usize> {
    places.get(peer).copied().flatten()
}

impl Members {
    /// All ranks.
    pub(super) fn world(links: Links) -> Members {
        let members: Vec<usize> = (0..links.size()).collect();
        let places = members.iter().copied().map(Some).collect();
        Members { links: Rc::new(RefCell::new(links)), members, places, number: 0 }
    }

    /// A group of the members at the places `chosen`, in that order. All of them must pass the same
    /// `color`.
    pub(super) fn part(&self, chosen: &[usize], color: u32) -> Members {
        let members: Vec<usize> =
            chosen.iter().filter_map(|&place| self.members.get(place).copied()).collect();
        let mut places = vec![None; self.places.len()];
        for (place, &member) in members.iter().enumerate() {
            places[member] = Some(place);
        }
        // Far from the numbers of other groups, so that a call on the wrong group is noticed.
        let number = self
            .number
            .wrapping_add(color.wrapping_add(1).wrapping_mul(0x9e37_79b1))
            .rotate_left(16);
        Members { links: Rc::clone(&self.links), members, places, number }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// Sends `out(place)` to each member and fills `inbox`, all at once, as part of a call.
    pub(super) fn transfer<'b>(
        &mut self,
        call: Call,
        out: impl Fn(usize) -> Option<&'b [u8]>,
        inbox: &mut impl Inbox,
    ) -> Result<(), CollectiveError> {
        self.number = self.number.wrapping_add(1);
        let transfer = Transfer { number: self.number, call };
        let places = &self.places[..];
        let mut inbox = OfMembers { places, inbox };
        self.links.borrow_mut().transfer(transfer, |peer| out(place(places, peer)?), &mut inbox)
    }

    /// Fails if an earlier call failed, or if a rank was lost after its part in the last call.
    #[cfg(target_os = "linux")]
    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        self.links.borrow_mut().check()
    }

    /// Checks for lost ranks, while this rank has been waiting since `since` for the member at
    /// `place` by other means. If that member `has_come`, this call goes on and the next one fails.
    #[cfg(target_os = "linux")]
    pub(crate) fn look(
        &self,
        call: Call,
        place: usize,
        since: Instant,
        has_come: impl Fn() -> bool,
    ) -> Result<(), CollectiveError> {
        self.links.borrow_mut().look(call, self.member(place), since, has_come)
    }

    /// Gives up on the member at `place`, after waiting too long for it by other means.
    #[cfg(target_os = "linux")]
    pub(crate) fn late(&self, place: usize) -> CollectiveError {
        self.links.borrow_mut().late(self.member(place))
    }

    /// Gives up because the member at `place` made another call.
    #[cfg(target_os = "linux")]
    pub(crate) fn differs(&self, place: usize, found: Call, expected: Call) -> CollectiveError {
        self.links.borrow_mut().differs(self.member(place), found, expected)
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn timeout(&self) -> Duration {
        self.links.borrow().timeout()
    }

    /// The world rank at a place.
    fn member(&self, place: usize) -> usize {
        self.members.get(place).copied().unwrap_or(place)
    }

    /// This rank's number in the world.
    pub(crate) fn own(&self) -> u32 {
        self.links.borrow().own()
    }

    /// Gives up because of what the member at `place` sent.
    pub(crate) fn give_up_on(&self, place: usize, reason: String) -> CollectiveError {
        self.links.borrow_mut().give_up_on(self.member(place), reason)
    }

    /// How many bytes this rank has written to all others, in all groups, including frame heads.
    pub(super) fn written(&self) -> u64 {
        self.links.borrow().written()
    }

    /// Exits without a goodbye, as a killed process does.
    #[cfg(test)]
    pub(crate) fn fail_silently(&self) {
        self.links.borrow_mut().fail_silently();
    }
}
