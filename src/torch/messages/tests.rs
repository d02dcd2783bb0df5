use std::ffi::CString;
use std::net::TcpListener;
use std::{ptr, thread};

use super::*;
use crate::abi::*;
use crate::tests::{Connected, TIMEOUT_MS, failure, kind};

/// Connects a sender and a receiver, which errors call 5 and 3.
fn pair() -> [Connected; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let end = |descriptor: i32| {
        let [host, other_host] = ["127.0.0.1", "node07"].map(|text| CString::new(text).unwrap());
        let (mut handle, mut is_canceled) = (ptr::null_mut(), 0);
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
                &raw mut is_canceled,
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
fn send(Connected(handle): Connected, values: &[u8], kind: u8, tag: u32) -> i32 {
    // SAFETY: these are the bytes and their number.
    unsafe { mpienv_torch_send(handle, values.as_ptr(), values.len(), kind, tag) }
}

/// The code, and the tag, kind and length of the next message, which is not received.
fn next(receiver: Connected) -> (i32, (u32, u8, u64)) {
    let (code, found, is_received) = next_or_expected(receiver, u32::MAX, 0, &mut []);
    assert_eq!(is_received, 0);
    (code, found)
}

/// As `next`, and whether it was the one that is expected, and is received.
fn next_or_expected(
    Connected(handle): Connected,
    tag: u32,
    kind: u8,
    into: &mut [u8],
) -> (i32, (u32, u8, u64), u8) {
    let (mut found, mut is_received) = ((tag, kind, 0), 0);
    // SAFETY: the places take numbers, and these are the bytes and their number.
    let code = unsafe {
        let (tag, kind, length) = (&raw mut found.0, &raw mut found.1, &raw mut found.2);
        let (values, room, received) = (into.as_mut_ptr(), into.len(), &raw mut is_received);
        mpienv_torch_next(handle, TIMEOUT_MS, values, room, tag, kind, length, received)
    };
    (code, found, is_received)
}

fn receive(Connected(handle): Connected, into: &mut [u8], kind: u8, tag: u32) -> i32 {
    // SAFETY: these are the bytes and their number.
    unsafe { mpienv_torch_receive(handle, into.as_mut_ptr(), into.len(), kind, tag) }
}

fn close(Connected(handle): Connected) {
    // SAFETY: it is not used again.
    unsafe { mpienv_torch_close(handle) };
}

#[test]
fn the_receiver_sees_a_message_before_it_receives_it() {
    let [sender, receiver] = pair();
    let sending = thread::spawn(move || {
        let codes = [1, 2].map(|value| send(sender, &[value; 8], kind("f32"), 7));
        close(sender);
        codes
    });
    assert_eq!(next(receiver), (0, (7, kind("f32"), 8)));
    let mut into = [0; 8];
    assert_eq!(receive(receiver, &mut into, kind("f32"), 7), 0);
    assert_eq!(into, [1; 8]);
    let (float, mut into) = (kind("f32"), [0; 8]);
    for (tag, kind, length) in [(6, float, 8), (7, kind("i32"), 8), (7, float, 4)] {
        let found = next_or_expected(receiver, tag, kind, &mut into[..length]);
        assert_eq!((found, into), ((0, (7, float, 8), 0), [0; 8]));
    }
    let found = next_or_expected(receiver, 7, float, &mut into);
    assert_eq!((found, into), ((0, (7, float, 8), 1), [2; 8]));
    assert_eq!(sending.join().unwrap(), [0; 2]);
    assert_eq!(next(receiver).0, 2);
    let left = "rank 5 on node07 is lost: it exited before this rank did";
    assert_eq!(failure(), (left.to_owned(), 5));
    close(receiver);
}

#[test]
fn bytes_that_are_not_whole_numbers_and_types_that_do_not_exist_are_refused() {
    let [sender, receiver] = pair();
    let refused = |code: i32, expected: &str| {
        assert_eq!(code, 1);
        assert!(failure().0.contains(expected), "{}", failure().0);
    };
    refused(send(sender, &[1; 7], kind("f32"), 7), "7 bytes are not f32");
    refused(send(sender, &[1; 8], 99, 7), "no type has the number 99");
    refused(receive(receiver, &mut [0; 9], kind("i64"), 7), "9 bytes are not i64");
    refused(send(Connected(ptr::null_mut()), &[], kind("f32"), 7), "the group is closed");
    refused(next(Connected(ptr::null_mut())).0, "the group is closed");
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
    assert_eq!(next(receiver).0, 2);
    assert_eq!(failure(), ("rank 5 on node07 is lost: it closed the connection".to_owned(), 5));
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
