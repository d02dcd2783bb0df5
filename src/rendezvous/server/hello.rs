//! Handles what connections send: hellos from ranks and strangers, and confirmations that a rank is
//! still there.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Connection, Joined, SETTLE, Server, Stage, delivery};
use crate::connections::read;
use crate::frame::{FIRST, Hello, Message, Purpose, Reject, ReplyKind, SHORT_BLOB, reply};
use crate::most_in_all;
use crate::seam::done_within;
use crate::table::Row;
use mpienv_core::Port;

/// How long after a newer connection an older one's close may arrive.
const OVERTAKEN: Duration = Duration::from_millis(200);

impl Server<'_> {
    pub(super) fn read(&mut self, id: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(id) else { return };
            let mut most = self.scratch.len();
            if let Stage::Unknown(hello) = &connection.state.stage {
                match hello.long_blob() {
                    // It waits unread.
                    Some(length)
                        if !self.blobs.may_read(connection.serial, id, connection.peer, length) =>
                    {
                        return;
                    }
                    Some(_) => {}
                    None => most = FIRST,
                }
            }
            let length = match read(&mut connection.stream, &mut self.scratch[..most]) {
                Ok(Some(length)) => length,
                Ok(None) => return,
                Err(_) => return self.close(id),
            };
            let bytes = &self.scratch[..length];
            let (peer, port) = (connection.peer, connection.state.port);
            let Stage::Unknown(hello) = &mut connection.state.stage else {
                if !connection.state.discard(length) {
                    return self.close(id);
                }
                if let Stage::Member { rank, joined: true } = connection.state.stage {
                    match connection.state.hear(bytes) {
                        Ok(true) => self.liveness.confirm(rank),
                        Ok(false) => {}
                        Err(reject) => return self.reject(id, peer, port, reject),
                    }
                }
                continue;
            };
            self.blobs.count(connection.serial, length);
            if hello.is_unproven() && !self.guesses.allow(peer, Instant::now()) {
                return self.close(id);
            }
            match hello.feed(bytes, &self.secret) {
                Ok(None) => {}
                Ok(Some(hello)) => self.hear(id, peer, port, hello),
                Err(reject) => self.reject(id, peer, port, reject),
            }
        }
    }

    /// Handles a connection that does not belong to one of this job's ranks.
    fn reject(&mut self, id: usize, peer: IpAddr, port: Port, reject: Reject) {
        let is_elsewhere = port != self.settings.port;
        match reject {
            Reject::NotMpienv => self.close(id),
            Reject::Altered => {
                self.problems.altered(peer);
                self.close(id);
            }
            Reject::OtherJob => {
                self.guesses.count(peer, Instant::now());
                // On the default port, that job's own rank 0 may be about to start.
                if is_elsewhere {
                    return self.close(id);
                }
                self.problems.rejected += 1;
                self.problems.other_job(peer);
                self.turn_away(id);
                let other_job = reply(ReplyKind::OtherJob, &[]);
                self.write(id, |connection: &mut Connection| connection.send(other_job));
            }
            Reject::OtherRun { .. } if is_elsewhere => self.close(id),
            Reject::OtherRun { rank, run } => {
                self.problems.rejected += 1;
                let text = delivery::of_another_run(rank, run, self.secret.run);
                self.turn_away(id);
                self.say(id, &Message::new(ReplyKind::TurnedAway, text.as_bytes()));
            }
            Reject::OtherVersion { rank, version } => {
                self.problems.version(rank, version, peer);
                self.join(id, rank, false);
                self.trouble();
            }
        }
    }

    /// Returns whether a connection is or soon will be closed: on a busy machine, a new connection
    /// may overtake a close.
    fn is_closed_soon(&self, id: usize) -> bool {
        let Some(connection) = self.connections.get(id) else { return false };
        // Do not wait for a second conflict: the meeting has failed already.
        let patience = if self.problems.conflicts() == 0 { OVERTAKEN } else { Duration::ZERO };
        done_within(patience, || connection.is_closed())
    }

    /// Makes a connection count no longer. It gets one more answer.
    fn turn_away(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.state.become_known(Stage::Closing);
        self.blobs.forget(connection.serial);
    }

    /// Tells the ranks whose blob is not complete that the meeting has failed.
    pub(super) fn tell_the_unfinished(&mut self, failure: &Message) {
        for id in self.blobs.unfinished() {
            self.turn_away(id);
            self.say(id, failure);
            // Closing a connection with unread bytes would take back what was written.
            self.read(id);
        }
    }

    /// Adds the ranks whose blob is not complete to the problems.
    pub(super) fn note_the_unfinished(&mut self) {
        for id in self.blobs.unfinished() {
            let Some(connection) = self.connections.get(id) else { continue };
            let Stage::Unknown(hello) = &connection.state.stage else { continue };
            if let Some(rank) = hello.claimed_rank().filter(|rank| !self.joined.contains_key(rank))
            {
                self.problems.unfinished.insert(rank, connection.peer);
            }
        }
    }

    /// Handles a complete hello of this job.
    fn hear(&mut self, id: usize, peer: IpAddr, port: Port, hello: Hello) {
        let Hello { rank, size, purpose, blob, .. } = hello;
        let announced = if purpose == Purpose::OtherPort { hello.port } else { port };
        let refuse = |server: &mut Server<'_>| {
            server.trouble();
            server.join(id, rank, false);
        };
        if announced != self.settings.port {
            self.problems.port(rank, announced, peer);
            return refuse(self);
        }
        if size != self.settings.rank.size() {
            self.problems.size(rank, size, peer);
            let serial = self.connections.get(id).map(|connection| connection.serial);
            self.outliers.extend(serial.map(|serial| (Instant::now() + SETTLE, id, serial)));
            return refuse(self);
        }
        // A rank whose long blob waits unread for too long closes the connection and comes again.
        // Its next connection may have to wait, too.
        if blob.len() > SHORT_BLOB && self.connections.get(id).is_some_and(Connection::is_closed) {
            self.turn_away(id);
            return self.close(id);
        }
        // A rank whose first connection broke may reconnect before rank 0 notices.
        let earlier = self.joined.get(&rank).map(|joined| joined.id);
        if let Some(earlier) = earlier.filter(|&earlier| self.is_closed_soon(earlier)) {
            self.close(earlier);
        }
        let earlier = self.joined.get(&rank).and_then(|joined| self.connections.get(joined.id));
        let earlier = earlier.map(|connection| connection.peer);
        if rank == 0 || earlier.is_some() {
            self.problems.duplicate(rank, earlier, peer);
            return refuse(self);
        }
        if self.brought.saturating_add(blob.len()) > most_in_all(size) {
            self.problems.too_much(rank, peer);
            return refuse(self);
        }
        self.brought += blob.len();
        let origin = (!peer.is_loopback()).then_some(peer);
        self.problems.lost.remove(&rank);
        let (row, needs_table) = (Row { origin, blob: blob.into() }, purpose == Purpose::Table);
        self.joined.insert(rank, Joined { id, row, needs_table });
        self.liveness.unasked.insert(rank);
        self.join(id, rank, true);
    }
}
