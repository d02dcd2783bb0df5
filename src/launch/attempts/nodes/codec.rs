//! Events and orders as bytes. Received data is checked, and received text cannot control a
//! terminal.

use std::process::ExitStatus;
use std::time::Duration;

use crate::launch::attempts::coordinator::{Event, Failed, Haste, Order, Verdict};
use crate::launch::ending::{Cause, Ending, Failure, Final, How};
use crate::value::printable::printable;

/// What a launch sends to the meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// How often the platform had restarted the job, as this node knows it.
    pub base: u32,
    pub host: String,
}

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.number(self.base);
        to.text(&self.host);
        to.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Introduction> {
        let from = &mut Reader(bytes);
        Some(Introduction { base: from.number()?, host: from.text()? })
    }
}

/// The answer of the first launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The highest restart count of any node.
    pub base: u32,
    /// How long a node may be silent.
    pub silence: Duration,
}

impl Terms {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.number(self.base);
        to.time(self.silence);
        to.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Terms> {
        let from = &mut Reader(bytes);
        Some(Terms { base: from.number()?, silence: from.time()? })
    }
}

/// Writes numbers and texts.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u32) {
        self.0.extend(number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
    }

    fn signed(&mut self, number: i32) {
        self.0.extend(number.to_be_bytes());
    }

    fn time(&mut self, time: Duration) {
        self.number(u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    }
}

/// Reads what [`Writer`] wrote. Returns `None` if the data is too short.
#[derive(Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*number))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(printable(bytes))
    }

    fn signed(&mut self) -> Option<i32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*number))
    }

    fn time(&mut self) -> Option<Duration> {
        self.number().map(|time| Duration::from_millis(time.into()))
    }

    fn flag(&mut self) -> Option<bool> {
        Some(self.number()? != 0)
    }

    /// Reads a list. Its count reserves no memory, because the items may be missing.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| item(self)).collect()
    }
}

pub(super) fn event(event: &Event) -> Vec<u8> {
    let mut to = Writer::default();
    match event {
        Event::Failing { haste } => {
            to.number(1);
            to.number(number_of(*haste));
        }
        Event::Failed { failure, endings: all } => {
            to.number(2);
            write_failure(&mut to, failure);
            endings(&mut to, all);
        }
        Event::Stopped { endings: all, is_final } => {
            to.number(3);
            endings(&mut to, all);
            to.number(u32::from(*is_final));
        }
        Event::Done { endings: all } => {
            to.number(4);
            endings(&mut to, all);
        }
        Event::Signal => to.number(5),
        // A launch does not report its own loss.
        Event::Lost { .. } => to.number(0),
    }
    to.0
}

/// Reads an event that the launch of this node reports.
pub(super) fn read_event(node: u32, bytes: &[u8]) -> Option<Event> {
    let from = &mut Reader(bytes);
    Some(match from.number()? {
        1 => Event::Failing { haste: read_haste(from)? },
        2 => Event::Failed {
            failure: Box::new(Failure { node, ..read_failure(from)? }),
            endings: from.list(read_ending)?,
        },
        3 => Event::Stopped { endings: from.list(read_ending)?, is_final: from.flag()? },
        4 => Event::Done { endings: from.list(read_ending)? },
        5 => Event::Signal,
        _ => return None,
    })
}

/// Writes an order without how each rank ended, because only the first node reports that.
pub(super) fn order(order: &Order) -> Vec<u8> {
    let mut to = Writer::default();
    match order {
        Order::Stop { again, haste } => {
            to.number(1);
            to.number(*again);
            to.number(number_of(*haste));
        }
        Order::Start { again, pause, failure } => {
            to.number(2);
            to.number(*again);
            to.time(*pause);
            write_failure(&mut to, failure);
        }
        Order::Finish(Verdict::Done) => to.number(3),
        Order::Finish(Verdict::Failed(failed)) => {
            to.number(4);
            write_failure(&mut to, &failed.failure);
        }
        Order::Finish(Verdict::Lost { node, host, reason }) => {
            to.number(5);
            to.number(*node);
            to.text(host);
            to.text(reason);
        }
    }
    to.0
}

pub(super) fn read_order(bytes: &[u8]) -> Option<Order> {
    let from = &mut Reader(bytes);
    Some(match from.number()? {
        1 => Order::Stop { again: from.number()?, haste: read_haste(from)? },
        2 => {
            let (again, pause) = (from.number()?, from.time()?);
            Order::Start { again, pause, failure: Box::new(read_failure(from)?) }
        }
        3 => Order::Finish(Verdict::Done),
        4 => {
            let failure = read_failure(from)?;
            let failed = Failed { failure, endings: Vec::new(), earlier: Vec::new(), most: 0 };
            Order::Finish(Verdict::Failed(Box::new(failed)))
        }
        5 => Order::Finish(Verdict::Lost {
            node: from.number()?,
            host: from.text()?,
            reason: from.text()?,
        }),
        _ => return None,
    })
}

fn number_of(haste: Haste) -> u32 {
    match haste {
        Haste::Failure => 0,
        Haste::Signal => 1,
        Haste::Now => 2,
    }
}

fn read_haste(from: &mut Reader<'_>) -> Option<Haste> {
    let number = from.number()?;
    [Haste::Failure, Haste::Signal, Haste::Now]
        .into_iter()
        .find(|haste| number_of(*haste) == number)
}

fn endings(to: &mut Writer, endings: &[Ending]) {
    to.number(u32::try_from(endings.len()).unwrap_or(u32::MAX));
    for Ending { rank, how } in endings {
        to.number(*rank);
        let (kind, value) = match *how {
            How::Asked => (0, 0),
            How::Killed => (1, 0),
            How::Exited(code) => (2, code),
            How::Signal(signal) => (3, signal),
        };
        to.number(kind);
        to.signed(value);
    }
}

fn read_ending(from: &mut Reader<'_>) -> Option<Ending> {
    let (rank, kind, value) = (from.number()?, from.number()?, from.signed()?);
    let how = match kind {
        0 => How::Asked,
        1 => How::Killed,
        2 => How::Exited(value),
        3 => How::Signal(value),
        _ => return None,
    };
    Some(Ending { rank, how })
}

fn write_failure(to: &mut Writer, failure: &Failure) {
    let Failure { node, host, after, is_final, cause } = failure;
    to.number(*node);
    to.text(host);
    to.time(*after);
    let (kind, code) = match is_final {
        None => (0, 0),
        Some(Final::Code(code)) => (1, *code),
        Some(Final::Signal) => (2, 0),
        Some(Final::Launch) => (3, 0),
        Some(Final::Output) => (4, 0),
    };
    to.number(kind);
    to.signed(code);
    match cause {
        Cause::Other { text } => {
            to.number(0);
            to.text(text);
        }
        Cause::Worker { rank, status, stderr } => {
            to.number(1 + u32::from(stderr.is_some()));
            to.number(*rank);
            to.signed(raw(*status));
            let lines = stderr.as_deref().unwrap_or_default();
            to.number(u32::try_from(lines.len()).unwrap_or(u32::MAX));
            lines.iter().for_each(|line| to.text(line));
        }
    }
}

fn read_failure(from: &mut Reader<'_>) -> Option<Failure> {
    let (node, host, after) = (from.number()?, from.text()?, from.time()?);
    let is_final = match (from.number()?, from.signed()?) {
        (0, _) => None,
        (1, code) => Some(Final::Code(code)),
        (2, _) => Some(Final::Signal),
        (3, _) => Some(Final::Launch),
        (4, _) => Some(Final::Output),
        _ => return None,
    };
    let cause = match from.number()? {
        0 => Cause::Other { text: from.text()? },
        kind => {
            let (rank, status) = (from.number()?, status(from.signed()?));
            let lines = from.list(Reader::text)?;
            Cause::Worker { rank, status, stderr: (kind == 2).then_some(lines) }
        }
    };
    Some(Failure { node, host, after, is_final, cause })
}

#[cfg(unix)]
fn raw(status: ExitStatus) -> i32 {
    std::os::unix::process::ExitStatusExt::into_raw(status)
}

#[cfg(unix)]
fn status(raw: i32) -> ExitStatus {
    std::os::unix::process::ExitStatusExt::from_raw(raw)
}

#[cfg(not(unix))]
fn raw(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1)
}

#[cfg(windows)]
fn status(raw: i32) -> ExitStatus {
    std::os::windows::process::ExitStatusExt::from_raw(raw.cast_unsigned())
}

#[cfg(not(any(unix, windows)))]
fn status(_: i32) -> ExitStatus {
    ExitStatus::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        let cause = Cause::Worker {
            rank: 3,
            status: status(9),
            stderr: Some(vec!["a".to_owned(), String::new()]),
        };
        let is_final = Some(Final::Code(126));
        Failure {
            node: 1,
            host: "nodeB".to_owned(),
            after: Duration::from_millis(1234),
            is_final,
            cause,
        }
    }

    fn all_events() -> Vec<Event> {
        let all = [How::Asked, How::Killed, How::Exited(-3), How::Signal(11)];
        let endings: Vec<_> = all.into_iter().map(|how| Ending { rank: 7, how }).collect();
        let cause = Cause::Other { text: "cannot".to_owned() };
        vec![
            Event::Failing { haste: Haste::Signal },
            Event::Failing { haste: Haste::Now },
            Event::Failed { failure: Box::new(failure()), endings: endings.clone() },
            Event::Failed {
                failure: Box::new(Failure { cause, is_final: None, ..failure() }),
                endings: vec![],
            },
            Event::Stopped { endings: endings.clone(), is_final: true },
            Event::Done { endings },
            Event::Signal,
        ]
    }

    fn all_orders() -> Vec<Order> {
        let failed = Failed { failure: failure(), endings: vec![], earlier: vec![], most: 0 };
        vec![
            Order::Stop { again: 4, haste: Haste::Failure },
            Order::Start { again: 5, pause: Duration::from_secs(2), failure: Box::new(failure()) },
            Order::Finish(Verdict::Done),
            Order::Finish(Verdict::Failed(Box::new(failed))),
            Order::Finish(Verdict::Lost {
                node: 2,
                host: "nodeC".to_owned(),
                reason: "gone".to_owned(),
            }),
        ]
    }

    #[test]
    fn events_and_orders_are_read_as_they_were_written() {
        for sent in all_events() {
            assert_eq!(read_event(1, &event(&sent)), Some(sent));
        }
        for sent in all_orders() {
            assert_eq!(read_order(&order(&sent)), Some(sent));
        }
        let introduction = Introduction { base: 3, host: "nodeB".to_owned() };
        assert_eq!(Introduction::decode(&introduction.encode()), Some(introduction));
        let terms = Terms { base: 3, silence: Duration::from_millis(1500) };
        assert_eq!(Terms::decode(&terms.encode()), Some(terms));
    }

    #[test]
    fn bytes_that_are_cut_short_or_changed_are_refused_or_harmless() {
        let events = all_events().into_iter().map(|sent| event(&sent));
        for whole in events.chain(all_orders().into_iter().map(|sent| order(&sent))) {
            for at in 0..whole.len() {
                let _ = (read_event(1, &whole[..at]), read_order(&whole[..at]));
                let mut changed = whole.clone();
                changed[at] = 0xff;
                let _ = (read_event(1, &changed), read_order(&changed));
            }
        }
        assert_eq!(read_event(1, &[0, 0, 0, 9]), None);
        // A count without items must not reserve memory.
        assert_eq!(read_event(1, &[0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn a_node_speaks_for_itself_and_cannot_command_a_terminal() {
        let host = "\x1b]0;x".to_owned();
        let sent =
            Event::Failed { failure: Box::new(Failure { host, ..failure() }), endings: vec![] };
        let Some(Event::Failed { failure, .. }) = read_event(5, &event(&sent)) else { panic!() };
        assert_eq!((failure.node, failure.host.as_str()), (5, "\u{fffd}]0;x"));
    }
}
