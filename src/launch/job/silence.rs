//! Which nodes are silent, and what the ranks of silent nodes are doing.

use std::time::Duration;

use crate::stall::RankState;

/// The silence of all nodes in the current attempt.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The nodes without an active worker.
    silent: Vec<u32>,
    /// The number of the last round of looks. It is never used again, so that a late answer does
    /// not count for a later round.
    round: u32,
    /// What is known in the current round, if there is one.
    looks: Option<Answers>,
}

/// The answers of one round.
#[derive(Debug, Default)]
pub(super) struct Answers {
    nodes: Vec<u32>,
    /// The longest time that the attempt has run on a node.
    pub after: Duration,
    pub ranks: Vec<RankState>,
}

impl Silence {
    /// Begins another attempt.
    pub(super) fn begin(&mut self) {
        self.silent.clear();
        self.looks = None;
    }

    pub(super) fn silent(&mut self, node: u32) {
        if !self.silent.contains(&node) {
            self.silent.push(node);
        }
    }

    /// Notes that a worker of this node has been active. What was seen meanwhile does not count.
    pub(super) fn active(&mut self, node: u32) {
        self.silent.retain(|silent| *silent != node);
        self.looks = None;
    }

    /// Begins a round of looks if all nodes are silent and none has begun, and returns its number.
    pub(super) fn next_round(&mut self, nodes: usize) -> Option<u32> {
        if self.silent.len() < nodes || self.looks.is_some() {
            return None;
        }
        self.round = self.round.wrapping_add(1);
        self.looks = Some(Answers::default());
        Some(self.round)
    }

    /// Adds what a node has seen in a round. Returns all of it once every node has answered that
    /// is not in `over`.
    pub(super) fn seen(
        &mut self,
        node: u32,
        round: u32,
        seen: (Duration, Vec<RankState>),
        over: &[u32],
    ) -> Option<Answers> {
        let (after, ranks) = seen;
        let looks = self.looks.as_mut().filter(|_| round == self.round)?;
        if looks.nodes.contains(&node) {
            return None;
        }
        looks.nodes.push(node);
        looks.after = looks.after.max(after);
        looks.ranks.extend(ranks);
        let has_answered = |node: &u32| looks.nodes.contains(node) || over.contains(node);
        self.silent.iter().all(has_answered).then(|| self.looks.take())?
    }
}
