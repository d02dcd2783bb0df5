//! Messages between two ranks.

use super::*;

/// Connects a sender and a receiver, which errors call 5 and 3.
fn pair() -> [Connected; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let end = |descriptor: i32| {
        let [host, other_host] = ["127.0.0.1", "node07"].map(|text| CString::new(text).unwrap());
        let (mut handle, mut is_ended) = (ptr::null_mut(), 0);
        // SAFETY: these are strings, a key, a descriptor that is given away, a number, and a place.
        let code = unsafe {
            mpienv_torch_pair(
                5,
                3,
                descriptor,
                host.as_ptr(),
                port,
                [7; 32].as_ptr(),
                other_host.as_ptr(),
                TIMEOUT_MS,
                -1,
                &raw mut is_ended,
                None,
                &raw mut handle,
            )
        };
        assert_eq!(code, 0, "{:?}", failure());
        Connected(handle)
    };
    thread::scope(|scope| {
        let sender = scope.spawn(|| end(listener.into_raw_fd()));
        let receiver = end(-1);
        [sender.join().unwrap(), receiver]
    })
}

/// Sends bytes, and returns the code.
fn send(Connected(handle): Connected, values: &mut [u8], kind: u16, tag: i64) -> i32 {
    call(handle, ("send", ""), kind, [0, tag], [&[piece(values)], &[]])
}

fn receive(Connected(handle): Connected, into: &mut [u8], kind: u16, tag: i64) -> i32 {
    call(handle, ("receive", ""), kind, [0, tag], [&[], &[piece(into)]])
}

/// The code, and the next message; it is received if it is expected.
fn next(receiver: Connected, tag: u32, kind: u16, into: &mut [u8]) -> (i32, Next) {
    next_within(
        TIMEOUT_MS,
        receiver,
        Next { length: into.len() as u64, tag, kind, is_received: 7 },
        into,
    )
}

fn next_within(
    longest_ms: u64,
    Connected(handle): Connected,
    mut next: Next,
    into: &mut [u8],
) -> (i32, Next) {
    // SAFETY: the place is a message's, and these are the bytes and their number.
    let code = unsafe { mpienv_torch_next(handle, longest_ms, into.as_mut_ptr(), &raw mut next) };
    (code, next)
}

#[test]
fn the_receiver_sees_a_message_before_it_receives_it() {
    let [sender, receiver] = pair();
    let float = kind("f32");
    let sending = thread::spawn(move || {
        let codes = [1, 2].map(|value| send(sender, &mut [value; 8], float, 7));
        close(sender);
        codes
    });
    let found = Next { length: 8, tag: 7, kind: float, is_received: 0 };
    let mut into = [0; 8];
    assert_eq!(next(receiver, u32::MAX, 0, &mut []), (0, found));
    assert_eq!(receive(receiver, &mut into, float, 7), 0);
    assert_eq!(into, [1; 8]);
    let mut into = [0; 8];
    for (tag, kind, length) in [(6, float, 8), (7, kind("i32"), 8), (7, float, 4)] {
        assert_eq!(next(receiver, tag, kind, &mut into[..length]), (0, found));
        assert_eq!(into, [0; 8]);
    }
    let received = next(receiver, 7, float, &mut into);
    assert_eq!((received, into), ((0, Next { is_received: 1, ..found }), [2; 8]));
    assert_eq!(sending.join().unwrap(), [0; 2]);
    assert_eq!(next(receiver, 7, float, &mut into).0, 2);
    let left = "rank 5 on node07 is lost: it exited before this rank did";
    assert_eq!(failure(), (left.to_owned(), 5));
    close(receiver);
}

#[test]
fn a_receiver_that_only_looks_goes_on_if_no_message_has_come() {
    let [sender, receiver] = pair();
    let float = kind("f32");
    let nothing = Next { length: 0, tag: 0, kind: NONE, is_received: 0 };
    let look = || next_within(0, receiver, nothing, &mut []);
    assert_eq!(look(), (0, nothing));
    let sending = thread::spawn(move || {
        let code = send(sender, &mut [1; 8], float, 7);
        close(sender);
        code
    });
    let come = loop {
        match look() {
            (0, Next { kind: NONE, .. }) => thread::yield_now(),
            other => break other,
        }
    };
    assert_eq!(come, (0, Next { length: 8, tag: 7, kind: float, is_received: 0 }));
    let mut into = [0; 8];
    assert_eq!(receive(receiver, &mut into, float, 7), 0);
    assert_eq!((sending.join().unwrap(), into), (0, [1; 8]));
    let lost = loop {
        match look() {
            (0, _) => thread::yield_now(),
            (code, _) => break code,
        }
    };
    assert_eq!((lost, failure().1), (2, 5));
    close(receiver);
}

#[test]
fn messages_that_no_pair_can_take_are_failures() {
    let [sender, receiver] = pair();
    let (float, closed) = (kind("f32"), Connected(ptr::null_mut()));
    is_refused(send(sender, &mut [1; 7], float, 7), "7 bytes are not f32");
    is_refused(send(sender, &mut [1; 8], 99, 7), "no type has the number 99");
    is_refused(send(sender, &mut [1; 8], float, -1), "out of range");
    is_refused(receive(receiver, &mut [0; 9], kind("i64"), 7), "9 bytes are not i64");
    is_refused(send(closed, &mut [], float, 7), "the group is closed");
    is_refused(next(closed, 7, float, &mut []).0, "the group is closed");
    close(sender);
    close(receiver);
}

#[test]
fn connections_that_are_released_end_and_their_numbers_stay_taken() {
    let [sender, receiver] = pair();
    // SAFETY: the pair is open. Its sender is only closed.
    let descriptor = unsafe {
        mpienv_torch_release(sender.0);
        mpienv_torch_release(ptr::null());
        (*sender.0).connections.iter().flatten().next().unwrap().descriptor
    };
    assert_eq!(next(receiver, 0, 0, &mut []).0, 2);
    assert_eq!(
        failure(),
        ("rank 5 on node07 is lost: its process exited or was killed".to_owned(), 5)
    );
    {
        let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap();
        assert_eq!(link.to_str(), Some("/dev/null"));
    }
    close(sender);
    close(receiver);
}

#[test]
fn a_copy_of_a_connection_shows_that_the_other_rank_has_left() {
    let [sender, receiver] = pair();
    let (mut host, mut descriptor) = ([0_u8; 64], -1);
    let mut copy = |rank: u32| {
        // SAFETY: the places are large enough.
        let length = unsafe {
            let into = &raw mut descriptor;
            mpienv_torch_connection(receiver.0, rank, host.as_mut_ptr(), host.len(), into)
        };
        (String::from_utf8(host[..length].to_vec()).unwrap(), descriptor)
    };
    for rank in [1, 2, u32::MAX] {
        assert_eq!(copy(rank), (String::new(), 0));
    }
    let (host, descriptor) = copy(0);
    assert_eq!(host, "node07");
    // SAFETY: the copy belongs to this test.
    let copy = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    assert!(!has_closed(copy.as_fd()));
    close(sender);
    while !has_closed(copy.as_fd()) {
        thread::yield_now();
    }
    close(receiver);
}
