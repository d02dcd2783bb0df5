//! The side of every other node: sends events and heartbeats, and receives orders.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::hub::SIGNS;
use super::{codec, reason};
use crate::launch::attempts::coordinator::{Event, Order, Verdict};
use crate::launch::attempts::mailbox::Mailbox;
use crate::rendezvous::{Channel, Sender as Line};

/// The minimum time that the first node has to answer all nodes.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// This node's connection to the first.
#[derive(Debug)]
pub(in crate::attempts) struct Member {
    /// Locked while a message is written.
    line: Arc<Mutex<Line>>,
    /// The same connection, used to close it.
    end: TcpStream,
    stop: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Member {
    /// `first` is the host of the first node. Orders go to the mailbox.
    pub(super) fn start(
        channel: Channel,
        first: String,
        silence: Duration,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Member> {
        let (line, mut from) = channel.open(silence)?;
        // Until its first message, the first node may be busy with other nodes.
        from.patience(silence.max(FIRST_MESSAGE))?;
        from.receive()?;
        from.patience(silence)?;
        let end = line.closer()?;
        let line = Arc::new(Mutex::new(line));
        let hear = move || {
            let error = loop {
                match from.receive() {
                    // A heartbeat.
                    Ok(body) if body.is_empty() => {}
                    Ok(body) => match codec::read_order(&body) {
                        Some(order) => {
                            let is_last = matches!(order, Order::Finish(_));
                            mailbox.put(order);
                            if is_last {
                                return;
                            }
                        }
                        None => break io::Error::from(io::ErrorKind::InvalidData),
                    },
                    Err(error) => break error,
                }
            };
            let reason = reason(&error, silence);
            mailbox.put(Order::Finish(Verdict::Lost { node: 0, host: first, reason }));
        };
        let (stop, stopped) = mpsc::channel();
        let to = Arc::clone(&line);
        let live = move || {
            while stopped.recv_timeout(silence / SIGNS) == Err(RecvTimeoutError::Timeout) {
                if send(&to, &[]).is_err() {
                    return;
                }
            }
        };
        let mut member = Member { line, end, stop: Some(stop), threads: Vec::new() };
        member.threads.push(thread::Builder::new().name("orders".to_owned()).spawn(hear)?);
        member.threads.push(thread::Builder::new().name("signs of life".to_owned()).spawn(live)?);
        Ok(member)
    }

    pub(in crate::attempts) fn send(&self, event: &Event) {
        // The thread that receives orders notices a broken connection.
        let _ = send(&self.line, &codec::event(event));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.end.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn send(line: &Mutex<Line>, body: &[u8]) -> io::Result<()> {
    line.lock().unwrap_or_else(PoisonError::into_inner).send(body)
}
