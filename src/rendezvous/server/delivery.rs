//! Sends the report to every rank: the table of all ranks, or why there is none. Ranks with another
//! world size get their error while the others go on.

use std::time::{Duration, Instant};
use std::{iter, mem};

use super::{Connection, Reply, Served, Server, Stage};
use crate::auth::{Role, Run};
use crate::error::RendezvousError;
use crate::frame::{Message, ReplyKind};
use crate::table::{self, Row};
use crate::{Channel, DRAIN, GRACE, LONGEST_BLOB};

/// How long the ranks may take to close their connections.
const CLOSE: Duration = Duration::from_secs(2);

impl Server<'_> {
    /// Sends every rank the table or rank 0's reply.
    pub(super) fn succeed(
        mut self,
        own: Row,
        answer: Reply<'_>,
    ) -> Result<Served, RendezvousError> {
        let others = self.joined.values_mut().map(|joined| {
            let Row { origin, blob } = &mut joined.row;
            Row { origin: *origin, blob: mem::take(blob) }
        });
        let rows: Vec<Row> = iter::once(own).chain(others).collect();
        // From here on, other programs can use the port.
        self.connections.stop_listening();
        let is_unknown = |stage: &Stage| matches!(stage, Stage::New | Stage::Unknown(_));
        for id in self.connections.ids(|connection| is_unknown(&connection.state.stage)) {
            self.close(id);
        }
        let members: Vec<_> = self.joined.values().map(|it| (it.id, it.needs_table)).collect();
        let is_needed = members.iter().any(|&(_, needs_table)| needs_table);
        let table = if is_needed { table::encode(&rows) } else { Vec::new() };
        let table = Message::new(ReplyKind::Table, &table);
        self.answer_outliers(None);
        let meeting = self.meeting(rows);
        let answer = answer(&meeting);
        if answer.len() > LONGEST_BLOB {
            return Err(self.fail(RendezvousError::BlobTooLong { length: answer.len() }));
        }
        let done = Message::new(ReplyKind::Done, &answer);
        self.stuck = None;
        self.stays_connected = self.settings.role != Role::Ranks;
        for (id, needs_table) in members {
            self.say(id, if needs_table { &table } else { &done });
        }
        self.deliver()?;
        // Everything is written or the connection is lost. A rank that has its table may close
        // before the others do.
        if let Some(error) = self.undelivered() {
            return Err(error);
        }
        if self.stays_connected {
            let channels = self.keep_connections()?;
            return Ok((meeting, channels));
        }
        // The end that closes first holds the port for a minute, and rank 0's program may have to
        // listen on that port.
        let until = (Instant::now() + CLOSE).min(self.deadline + GRACE);
        let _ = self.turn_while(until, Connection::is_member);
        Ok((meeting, Vec::new()))
    }

    /// Takes the connections of all ranks, which send nothing before rank 0 does.
    fn keep_connections(&mut self) -> Result<Vec<Channel>, RendezvousError> {
        let mut channels = Vec::with_capacity(self.joined.len());
        for (&rank, joined) in &self.joined {
            let Some(connection) = self.connections.remove(joined.id) else { continue };
            let Some(directions) = connection.state.directions else { continue };
            let (stream, directions) = (connection.stream.into(), *directions);
            channels.push(Channel { rank, stream, directions });
        }
        match self.problems.lost.first_key_value() {
            Some((rank, address)) => {
                let report = format!(
                    "rank {rank} ({address}) connected and was lost; look for an error that it printed"
                );
                Err(RendezvousError::Lost { report })
            }
            None => Ok(channels),
        }
    }

    /// Sends the failure to all ranks that have arrived, and to those that arrive meanwhile.
    pub(super) fn fail(mut self, error: RendezvousError) -> RendezvousError {
        let kind = match error {
            RendezvousError::Missing { .. } => ReplyKind::TimedOut,
            RendezvousError::Lost { .. } => ReplyKind::Lost,
            _ => ReplyKind::Mismatch,
        };
        let failure = Message::new(kind, error.text().as_bytes());
        self.failure = Some(failure.clone());
        let members = self.connections.ids(Connection::is_member);
        members.into_iter().for_each(|id| self.say(id, &failure));
        self.tell_the_unfinished(&failure);
        // A failure to deliver the error does not change the error.
        let _ = self.deliver();
        error
    }

    /// Writes until nothing is left or the time limit has passed.
    fn deliver(&mut self) -> Result<(), RendezvousError> {
        self.turn_while(Instant::now() + DRAIN, |connection| !connection.is_flushed())
    }

    fn undelivered(&self) -> Option<RendezvousError> {
        let stuck = self.connections.iter().find_map(|connection| match connection.state.stage {
            Stage::Member { rank, .. } if !connection.is_flushed() => Some((rank, connection.peer)),
            _ => None,
        });
        let (rank, address) = stuck.or(self.stuck)?;
        let report = format!(
            "rank {rank} ({address}) connected and did not take the list of all ranks: it was killed, stopped or cut off; look at \
             its output"
        );
        Some(RendezvousError::Lost { report })
    }

    /// Sends the error to the ranks that have waited long enough at `now`, or to all if `None`.
    /// Returns how long until the next is due.
    pub(super) fn answer_outliers(&mut self, now: Option<Instant>) -> Duration {
        while let Some(&(due, id, serial)) = self.outliers.front() {
            if let Some(now) = now
                && now < due
            {
                return due - now;
            }
            self.outliers.pop_front();
            let connection = self.connections.get_mut(id);
            let Some(connection) = connection.filter(|connection| connection.serial == serial)
            else {
                continue;
            };
            connection.state.stage = Stage::Closing;
            let size = self.settings.rank.size();
            let text = self.problems.sizes_differ(size, &self.present_ranks()).unwrap_or_default();
            self.say(id, &Message::new(ReplyKind::TurnedAway, text.as_bytes()));
        }
        Duration::MAX
    }
}

/// The answer to a rank that has the job's token but does not belong to this run of the job.
pub(super) fn of_another_run(rank: u32, run: Run, own: Run) -> String {
    match run.job == own.job {
        true => format!(
            "rank {rank} belongs to attempt {} of this job, and rank 0 to attempt {}: one of them is left over; stop it, and \
             start all ranks with one command",
            run.attempt, own.attempt
        ),
        false => format!(
            "rank {rank} has the same MPIENV_TOKEN as rank 0, and belongs to another job of its launcher: start all ranks with \
             one command, and give each job its own MASTER_PORT"
        ),
    }
}
