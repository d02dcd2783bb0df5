use std::sync::atomic::AtomicU32;

use super::*;
use crate::element::ElementKind;
use crate::group::{Announced, Group, Tagged as _};
use crate::hosts;
use crate::tests::PLENTY;
use crate::transport::Transport;

/// The numbers that errors use.
const NAMES: [u32; 2] = [5, 3];
const U8: ElementKind = ElementKind::U8;

type Joining = fn(Tcp) -> Result<Box<dyn Transport>, CollectiveError>;

fn over_tcp(tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
    Ok(Box::new(tcp))
}

fn pair(meeting: Meeting, timeout: Duration) -> Pair<'static> {
    Pair { names: NAMES, host: "node07".to_owned(), meeting, key: &[7; 32], timeout }
}

/// Runs the sender and the receiver, over TCP and over shared memory.
fn over_both<T: Send>(
    timeout: Duration,
    send: impl Fn(&mut Group) -> T + Sync,
    receive: impl Fn(&mut Group) -> T + Sync,
) -> [[T; 2]; 2] {
    [over_tcp, hosts::join as Joining].map(|join| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let run = |meeting, run: &(dyn Fn(&mut Group) -> T + Sync)| {
            run(&mut Group::new(pair(meeting, timeout).connect(&|| None, join).unwrap()))
        };
        thread::scope(|scope| {
            let sender = scope.spawn(|| run(Meeting::At(listener), &send));
            let receiver = scope.spawn(|| run(Meeting::To(address), &receive));
            [sender.join().unwrap(), receiver.join().unwrap()]
        })
    })
}

#[test]
fn the_receiver_knows_tag_type_and_length_before_it_receives() {
    let sent: [(u32, ElementKind, usize); 5] = [
        (0, U8, 0),
        (7, ElementKind::F32, 4),
        (u32::MAX, ElementKind::I64, 800),
        (7, U8, 65),
        (1, ElementKind::F64, 3_000_000),
    ];
    let bytes = |length: usize| (0..length).map(|at| (at % 251) as u8).collect::<Vec<_>>();
    over_both(
        PLENTY,
        |group| {
            for (tag, kind, length) in sent {
                group.send_tagged(kind, &bytes(length), 1, tag).unwrap();
            }
        },
        |group| {
            for (tag, kind, length) in sent {
                let count = (length / kind.size()) as u64;
                let announced = group.next_tagged(0, PLENTY).unwrap();
                assert_eq!(announced, Announced { tag, kind, count });
                // It may look again.
                assert_eq!(group.next_tagged(0, PLENTY).unwrap(), announced);
                let mut into = vec![0; length];
                group.receive_tagged(kind, &mut into, 0, tag).unwrap();
                assert!(into == bytes(length), "{tag}");
            }
        },
    );
}

#[test]
fn a_message_of_another_length_is_an_error_that_has_both_and_the_ranks_numbers() {
    for errors in over_both(
        PLENTY,
        |group| group.send_tagged(U8, &[1; 5], 1, 7).unwrap_err().to_string(),
        |group| {
            group.next_tagged(0, PLENTY).unwrap();
            group.receive_tagged(U8, &mut [0; 6], 0, 7).unwrap_err().to_string()
        },
    ) {
        for error in errors {
            let texts = ["rank 5 ", "send of 5 u8 with tag 7", "rank 3 ", "receive of 6 u8"];
            assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        }
    }
}

#[test]
fn a_sender_that_has_left_is_named_after_its_messages() {
    for [_, error] in over_both(
        PLENTY,
        |group| {
            group.send_tagged(U8, &[1; 100], 1, 7).unwrap();
            String::new()
        },
        |group| {
            group.next_tagged(0, PLENTY).unwrap();
            let mut into = [0; 100];
            group.receive_tagged(U8, &mut into, 0, 7).unwrap();
            assert_eq!(into, [1; 100]);
            group.next_tagged(0, PLENTY).unwrap_err().to_string()
        },
    ) {
        assert_eq!(error, "rank 5 on node07 is lost: it exited before this rank did");
    }
}

#[test]
fn a_sender_that_does_not_come_is_named_and_learns_it() {
    let ended = AtomicU32::new(0);
    for [sender, receiver] in over_both(
        PLENTY,
        |group| {
            let turn = ended.load(Ordering::SeqCst);
            while ended.load(Ordering::SeqCst) == turn {
                thread::sleep(Duration::from_millis(1));
            }
            group.send_tagged(U8, &[1; 5], 1, 7).unwrap_err().to_string()
        },
        |group| {
            let error = group.next_tagged(0, Duration::from_millis(50)).unwrap_err();
            ended.fetch_add(1, Ordering::SeqCst);
            error.to_string()
        },
    ) {
        assert!(receiver.starts_with("rank 5 on node07 did not arrive"), "{receiver}");
        let text = "the other ranks no longer wait for this rank: rank 5";
        assert!(sender.starts_with(text), "{sender}");
    }
}

#[test]
fn a_receiver_that_waits_can_be_canceled() {
    for errors in over_both(
        PLENTY,
        |group| group.next_tagged(1, PLENTY).unwrap_err().to_string(),
        |group| {
            let canceller = group.canceller();
            thread::spawn(move || canceller.cancel());
            group.next_tagged(0, PLENTY).unwrap_err().to_string()
        },
    ) {
        assert_eq!(errors[1], "the call was canceled by another thread of this process");
        assert_eq!(errors[0], "rank 3 on node07 is lost: its calls were canceled");
    }
}

#[test]
fn ranks_that_wait_for_each_other_end_once_that_is_in_vain() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let meetings: [fn(SocketAddr) -> Meeting; 2] = [
        |_| Meeting::At(TcpListener::bind("127.0.0.1:0").unwrap()),
        // It is connected, and does not get an answer.
        Meeting::To,
    ];
    for (other, meeting) in [3, 5].into_iter().zip(meetings) {
        let lost = format!("rank {other} on node07 is lost: it closed the connection");
        for (end, text) in [
            (End::Lost, lost.as_str()),
            (End::Canceled, "the call was canceled by another thread of this process"),
        ] {
            let ended = pair(meeting(address), PLENTY).connect(&|| Some(end), |_| Ok(()));
            assert_eq!(ended.unwrap_err().to_string(), text);
        }
    }
}

#[test]
fn the_other_rank_is_named_if_it_no_longer_listens_or_does_not_come_in_time() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = pair(Meeting::To(gone), PLENTY).connect(&|| None, |_| Ok(())).unwrap_err();
    assert!(error.to_string().starts_with("rank 5 on node07 is lost: 127.0.0.1:"), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(50);
    let error = pair(Meeting::At(listener), timeout).connect(&|| None, |_| Ok(())).unwrap_err();
    assert!(error.to_string().starts_with("rank 3 on node07 did not arrive"), "{error}");
}
