//! Sends the report to every rank: the table of all ranks, or why there is none.

use std::time::{Duration, Instant};

use mio::Events;

use super::{Reply, Served, Server};
use crate::rendezvous::auth::Role;
use crate::rendezvous::connection::{Connection, Stage};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::frame::{Message, ReplyKind};
use crate::rendezvous::table::{self, Row};
use crate::rendezvous::{Channel, DRAIN, GRACE, LONGEST_BLOB};

/// How long the ranks may take to close their connections.
const CLOSE: Duration = Duration::from_secs(2);

impl Server<'_> {
    /// Sends every rank the table or rank 0's reply.
    pub(super) fn succeed(
        mut self,
        own: Row,
        answer: Reply<'_>,
        events: &mut Events,
    ) -> Result<Served, RendezvousError> {
        let rows: Vec<Row> = std::iter::once(own)
            .chain(self.joined.values_mut().map(|joined| Row {
                place: joined.row.place,
                blob: std::mem::take(&mut joined.row.blob),
            }))
            .collect();
        // From here on, other programs can use the port.
        self.listeners.clear();
        self.more_to_accept = false;
        for id in 0..self.connections.len() {
            if let Some(Some(Connection { stage: Stage::Unknown(_), .. })) =
                self.connections.get(id)
            {
                self.close(id);
            }
        }
        let is_wanted = |connection: &Connection| {
            matches!(connection.stage, Stage::Member { needs_table: true, joined: true, .. })
        };
        let table = self.connections.iter().flatten().any(is_wanted).then(|| table::encode(&rows));
        let table = Message::new(ReplyKind::Table, &table.unwrap_or_default());
        self.answer_outliers(None);
        let meeting = self.meeting(rows);
        let answer = answer(&meeting);
        if answer.len() > LONGEST_BLOB {
            return Err(self.fail(RendezvousError::BlobTooLong { length: answer.len() }, events));
        }
        let done = Message::new(ReplyKind::Done, &answer);
        self.stuck = None;
        for id in 0..self.connections.len() {
            match self.connections[id].as_ref().map(|connection| &connection.stage) {
                Some(Stage::Member { needs_table: true, joined: true, .. }) => self.say(id, &table),
                Some(Stage::Member { joined: true, .. }) => self.say(id, &done),
                Some(Stage::Unknown(_) | Stage::Member { .. } | Stage::Closing) | None => {}
            }
        }
        self.deliver(events)?;
        // Everything is written or the connection is lost. A rank that has its table may close
        // before the others do.
        if let Some(error) = self.undelivered() {
            return Err(error);
        }
        if self.settings.role == Role::Launches {
            let channels = self.keep_connections()?;
            return Ok((meeting, channels));
        }
        self.let_ranks_close(events);
        Ok((meeting, Vec::new()))
    }

    /// Takes the connections of all ranks, which send nothing before rank 0 does.
    fn keep_connections(&mut self) -> Result<Vec<Channel>, RendezvousError> {
        let mut channels = Vec::with_capacity(self.joined.len());
        for (&rank, joined) in &self.joined {
            let Some(connection) = self.connections.get_mut(joined.id).and_then(Option::take)
            else {
                continue;
            };
            let Some(session) = connection.session else { continue };
            let mut stream = connection.stream;
            self.poll.registry().deregister(&mut stream).map_err(RendezvousError::System)?;
            channels.push(Channel::new(stream.into(), rank, session.of_master, session.of_rank));
        }
        match self.problems.lost.first_key_value() {
            Some((rank, address)) => {
                let report =
                    format!("rank {rank} ({address}) came and was lost; look at its output");
                Err(RendezvousError::Lost { report })
            }
            None => Ok(channels),
        }
    }

    /// Waits briefly for the ranks to close their connections: the end that closes first holds the
    /// port for a minute, and rank 0's program may have to listen on that port.
    fn let_ranks_close(&mut self, events: &mut Events) {
        let until = (Instant::now() + CLOSE).min(self.deadline + GRACE);
        loop {
            let is_open =
                |connection: &Connection| matches!(connection.stage, Stage::Member { .. });
            let left = until.saturating_duration_since(Instant::now());
            let is_any_open = self.connections.iter().flatten().any(is_open);
            if !is_any_open || left.is_zero() || self.turn(left, events).is_err() {
                return;
            }
        }
    }

    /// Sends the failure to all ranks that came, and to those that come meanwhile.
    pub(super) fn fail(mut self, error: RendezvousError, events: &mut Events) -> RendezvousError {
        let kind = match error {
            RendezvousError::Missing { .. } => ReplyKind::TimedOut,
            RendezvousError::Lost { .. } => ReplyKind::Lost,
            _ => ReplyKind::Mismatch,
        };
        let failure = Message::new(kind, error.text().as_bytes());
        self.failure = Some(failure.clone());
        for id in 0..self.connections.len() {
            if let Some(Some(Connection { stage: Stage::Member { .. }, .. })) =
                self.connections.get(id)
            {
                self.say(id, &failure);
            }
        }
        self.tell_the_unfinished(&failure);
        // A failure to deliver the error does not change the error.
        let _ = self.deliver(events);
        error
    }

    /// Writes until nothing is left or the time limit has passed.
    fn deliver(&mut self, events: &mut Events) -> Result<(), RendezvousError> {
        let until = Instant::now() + DRAIN;
        loop {
            let waiting = |connection: &Connection| !connection.is_flushed();
            if !self.connections.iter().flatten().any(waiting) {
                return Ok(());
            }
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            self.turn(until - now, events)?;
        }
    }

    fn undelivered(&self) -> Option<RendezvousError> {
        let stuck =
            self.connections.iter().flatten().find_map(|connection| match connection.stage {
                Stage::Member { rank, .. } if !connection.is_flushed() => {
                    Some((rank, connection.peer))
                }
                _ => None,
            });
        let (rank, address) = stuck.or(self.stuck)?;
        let report = format!(
            "rank {rank} ({address}) came and did not take the list of all ranks: it was killed, stopped or cut off; look at \
             its output"
        );
        Some(RendezvousError::Lost { report })
    }
}
