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

/// `woken`: has one byte for each new stream, and ends once there will be no more.
fn copy_all(new: &Receiver<Stream>, woken: UnixStream, buffer: &mut [u8]) {
    let mut streams: Vec<Stream> = Vec::new();
    let mut woken = Some(woken);
    while woken.is_some() || !streams.is_empty() {
        let Ok(ready) = wait(&streams, woken.as_ref()) else { return };
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| {
            !ready.next().unwrap_or(false) || stream.go_on(buffer).is_continue()
        });
        let is_woken = ready.next().unwrap_or(false);
        woken.take_if(|woken| is_woken && matches!(woken.read(&mut buffer[..1]), Ok(0)));
        streams.extend(new.try_iter());
    }
}

/// Waits until something can be read. Returns whether it is from each stream, and from the waker.
fn wait(streams: &[Stream], woken: Option<&UnixStream>) -> rustix::io::Result<Vec<bool>> {
    let ends = streams.iter().map(|stream| PollFd::new(&stream.from, PollFlags::IN));
    let mut polled: Vec<_> =
        ends.chain(woken.map(|woken| PollFd::new(woken, PollFlags::IN))).collect();
    streams.iter().for_each(|stream| stream.lines.progress.set_idle(true));
    let outcome = poll(&mut polled, None);
    streams.iter().for_each(|stream| stream.lines.progress.set_idle(false));
    match outcome {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect())
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
