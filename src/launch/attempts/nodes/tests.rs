//! What launches tell each other, valid and changed.

use super::first::of_node;
use super::*;
use crate::launch::attempts::message::{Failed, Haste, Order, Verdict};
use crate::launch::ending::{Cause, Ending, Failure, Final, How, by_signal};
use crate::launch::stall::Sight;

fn failure() -> Failure {
    let stderr = Some(vec!["a".to_owned(), String::new()]);
    let cause = Cause::Worker { rank: 3, status: by_signal(9), stderr };
    let (host, after) = ("nodeB".to_owned(), Duration::from_millis(1234));
    Failure { node: 1, host, after, is_final: Some(Final::Code(126)), cause }
}

fn all_events() -> Vec<Event> {
    let all = [How::Asked, How::Killed, How::Exited(-3), How::Signal(11)];
    let endings: Vec<_> = all.into_iter().map(|how| Ending { rank: 7, how }).collect();
    let cause = Cause::Other { text: "cannot".to_owned() };
    let other = Failure { cause, is_final: None, ..failure() };
    let summary = "rank 2 on node1: stopped by a signal".to_owned();
    let cause = Cause::Stalled { timeout: Duration::from_secs(5), summary };
    let stalled = Failure { cause, is_final: None, ..failure() };
    vec![
        Event::Failing { haste: Haste::Signal },
        Event::Failing { haste: Haste::Now },
        Event::Failed { failure: Box::new(failure()), endings: endings.clone() },
        Event::Failed { failure: Box::new(other), endings: vec![] },
        Event::Failed { failure: Box::new(stalled), endings: vec![] },
        Event::Stopped { endings: endings.clone(), is_final: true },
        Event::Done { endings },
        Event::Signal,
        Event::Silent,
        Event::Active,
        Event::Seen { round: 3, after: Duration::from_secs(9), sights: vec![Sight::of_rank(2)] },
    ]
}

fn all_orders() -> Vec<Order> {
    let failed =
        Failed { failure: failure(), endings: vec![], earlier: vec![], not_restarted: None };
    let (host, reason) = ("nodeC".to_owned(), "gone".to_owned());
    vec![
        Order::Stop { again: 4, haste: Haste::Failure, stall: None },
        Order::Look { round: 3 },
        Order::Start { again: 5, pause: Duration::from_secs(2), failure: Box::new(failure()) },
        Order::Finish(Verdict::Done),
        Order::Finish(Verdict::Failed(Box::new(failed))),
        Order::Finish(Verdict::Lost { node: 2, host, reason }),
    ]
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    said(Heard::Said(body.to_vec()), Duration::ZERO).and_then(Result::ok)
}

fn event(node: u32, body: &[u8]) -> Option<Event> {
    read(body).map(|event| of_node(node, event))
}

fn order(body: &[u8]) -> Option<Order> {
    read(body)
}

#[test]
fn events_and_orders_are_read_as_they_were_written() {
    for sent in all_events() {
        assert_eq!(event(1, &bytes(&sent)), Some(sent));
    }
    for sent in all_orders() {
        assert_eq!(order(&bytes(&sent)), Some(sent));
    }
}

#[test]
fn bytes_that_are_cut_short_or_changed_are_refused_or_harmless() {
    let events = all_events().into_iter().map(|sent| bytes(&sent));
    for whole in events.chain(all_orders().iter().map(bytes)) {
        for at in 0..whole.len() {
            assert_eq!((event(1, &whole[..at]), order(&whole[..at])), (None, None));
            let mut changed = whole.clone();
            changed[at] = 0xff;
            let _ = (event(1, &changed), order(&changed));
        }
    }
    // A node does not speak of its own loss, and a pause is not longer than a clock can count.
    assert_eq!(event(1, br#"{"lost":{"host":"a","reason":"b"}}"#), None);
    let start = String::from_utf8(bytes(&all_orders()[2])).unwrap();
    assert!(order(start.replace("2000", "4294967295").as_bytes()).is_some());
    assert_eq!(order(start.replace("2000", "4294967296").as_bytes()), None);
}

#[test]
fn a_node_speaks_for_itself_and_cannot_command_a_terminal() {
    let evil = || "\x1b]0;x".to_owned();
    let cause = Cause::Worker { rank: 0, status: by_signal(9), stderr: Some(vec![evil()]) };
    let failure = Box::new(Failure { host: evil(), cause, ..failure() });
    let sent = bytes(&Event::Failed { failure, endings: vec![] });
    let Some(Event::Failed { failure, .. }) = event(5, &sent) else { panic!() };
    assert_eq!((failure.node, failure.host.as_str()), (5, "\u{fffd}]0;x"));
    assert!(!failure.summary().contains('\x1b'));
}

#[test]
fn why_the_nodes_did_not_meet_is_not_returned_as_a_cause_once_more() {
    use std::error::Error as _;
    let error = mpienv_rendezvous::RendezvousError::System(io::Error::other("the reason"));
    let error = LaunchError::NotMet { port: mpienv_core::Port::ONE_NODE, error };
    assert!(error.to_string().contains("the reason") && error.source().is_none(), "{error}");
}
