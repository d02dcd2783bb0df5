//! Copies the lines of all workers in one thread, so that more workers do not need more threads.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{PollFd, PollFlags, poll};

use super::lines::Lines;
use crate::process::small_thread;

/// How much to read at a time, in bytes.
const READ: usize = 64 << 10;

/// Hands streams to the thread. Once this is dropped, the thread exits with the last stream.
#[derive(Debug)]
pub(crate) struct Copier {
    streams: Sender<Stream>,
    wakes: UnixStream,
}

#[derive(Debug)]
struct Stream {
    from: std::fs::File,
    lines: Lines,
}

impl Copier {
    pub(super) fn start() -> io::Result<Copier> {
        let (wakes, woken) = UnixStream::pair()?;
        let (streams, new) = mpsc::channel();
        let copy = move || copy_all(&new, woken, &mut vec![0; READ]);
        small_thread("copy lines")?.spawn(copy)?;
        Ok(Copier { streams, wakes })
    }

    /// Copies lines from this pipe until it ends.
    pub(super) fn copy(&self, from: impl Into<OwnedFd>, lines: Lines) -> io::Result<()> {
        let gone = || io::Error::other("the thread that copies lines has ended");
        self.streams.send(Stream { from: from.into().into(), lines }).map_err(|_| gone())?;
        // In this order, so that the woken thread finds the stream.
        (&self.wakes).write_all(&[0])
    }
}

fn copy_all(new: &Receiver<Stream>, mut woken: UnixStream, buffer: &mut [u8]) {
    let mut streams: Vec<Stream> = Vec::new();
    let mut is_last = false;
    while !is_last || !streams.is_empty() {
        let Ok(ready) = wait(&woken, is_last, &streams) else { return };
        let mut ready = ready.into_iter();
        if ready.next().unwrap_or(false) {
            // There is one byte for each new stream, and the end of the data if there will be no
            // more.
            is_last = woken.read(&mut buffer[..1]).is_ok_and(|length| length == 0);
        }
        streams.retain_mut(|stream| {
            !ready.next().unwrap_or(false) || stream.go_on(buffer).is_continue()
        });
        streams.extend(new.try_iter());
    }
}

/// Waits until something can be read. Returns whether it is from the waker, and then for each
/// stream.
fn wait(woken: &UnixStream, is_last: bool, streams: &[Stream]) -> rustix::io::Result<Vec<bool>> {
    let wanted = if is_last { PollFlags::empty() } else { PollFlags::IN };
    let mut polled = Vec::with_capacity(1 + streams.len());
    polled.push(PollFd::new(woken, wanted));
    polled.extend(streams.iter().map(|stream| PollFd::new(&stream.from, PollFlags::IN)));
    streams.iter().for_each(|stream| stream.lines.progress.set_idle(true));
    let outcome = poll(&mut polled, None);
    streams.iter().for_each(|stream| stream.lines.progress.set_idle(false));
    match outcome {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let ready = polled.iter().map(|polled| !polled.revents().is_empty());
    Ok(ready.enumerate().map(|(index, is_ready)| is_ready && (index > 0 || !is_last)).collect())
}

impl Stream {
    /// Reads once what is available. Breaks off at the end of the data.
    fn go_on(&mut self, buffer: &mut [u8]) -> ControlFlow<()> {
        match self.from.read(buffer) {
            Ok(0) => ControlFlow::Break(()),
            Ok(length) => self.lines.take(&buffer[..length]),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            },
        }
    }
}
