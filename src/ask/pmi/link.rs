//! The connection to the launcher's server.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::{FORM, PmiError};
use crate::route::look_up;
use mpienv_core::error::quote;
use mpienv_core::seam::digits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{RecvFlags, SendFlags, SocketType, recv, send, sockopt};

/// How long the server may take to answer what it answers alone. It usually takes under 1 ms.
const PATIENCE: Duration = Duration::from_secs(10);
/// The lowest number that a launcher may use: the ones below are stdin, stdout and stderr.
const LOWEST: RawFd = 3;

/// Lends a descriptor of which only the number is known.
///
/// Its flags, such as close-on-exec, can then be read and set. The number may not be open: every
/// call then fails.
#[expect(unsafe_code, reason = "another program has opened it and left only its number")]
#[must_use]
pub fn inherited(number: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: the number is not -1. No code in this process owns the descriptor or closes it, and
    // if it is not open, the system returns an error.
    (number >= LOWEST).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

/// A connection to the launcher's server.
///
/// It never changes the mode of the socket, which it shares with the program that asks next.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    /// What was received after the last answer.
    rest: Vec<u8>,
}

impl Link {
    /// Uses a connected socket.
    #[must_use]
    pub fn of(socket: OwnedFd) -> Link {
        Link { socket, rest: Vec::new() }
    }

    /// Uses the socket that the launcher has left open under this number, and leaves it open.
    pub(crate) fn of_number(number: RawFd) -> Result<Link, PmiError> {
        let own = || {
            let socket = fcntl_dupfd_cloexec(inherited(number).ok_or(Errno::BADF)?, LOWEST)?;
            let is_stream = sockopt::socket_type(&socket)? == SocketType::STREAM;
            if is_stream { Ok(Link::of(socket)) } else { Err(Errno::PROTOTYPE) }
        };
        own().map_err(|error| PmiError::NotASocket(error.into()))
    }

    /// Connects to the server at a port, which knows this process by this number.
    ///
    /// # Errors
    /// Returns an error if nothing listens at the port, or if what listens is not the launcher.
    pub fn of_port(host: &str, port: u16, id: u32) -> Result<Link, PmiError> {
        let none = || io::Error::from(io::ErrorKind::TimedOut);
        let connect = || {
            let found = look_up(host.to_owned(), port, PATIENCE).ok_or_else(none)??;
            let mut last = io::Error::other("the name has no address");
            for address in found {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        let stream = connect().map_err(PmiError::NoConnection)?;
        let mut link = Link::of(stream.into());
        let until = Instant::now() + PATIENCE;
        link.send("initack", &format!("cmd=initack pmiid={id}\n"), until)?;
        link.receive("initack", "initack", PATIENCE, until)?;
        // The size, the rank and the level of debugging, which variables show too.
        for _ in 0..3 {
            link.receive("initack", "set", PATIENCE, until)?;
        }
        Ok(link)
    }

    /// Returns a copy of the socket, for the process that keeps the connection open.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        Ok(fcntl_dupfd_cloexec(&self.socket, LOWEST)?)
    }

    /// Returns whether some process already says goodbye in the place of this one.
    pub(crate) fn is_kept(&self) -> bool {
        sockopt::socket_keepalive(&self.socket).unwrap_or(false)
    }

    /// Records that some process says goodbye: a second goodbye crashes MPICH 5's launcher.
    ///
    /// The mark belongs to the socket, so every process that inherits it sees it. A socket within
    /// this machine has no other use for it.
    pub(crate) fn mark_kept(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_keepalive(&self.socket, true)?)
    }

    /// Returns the process at the other end, if that is on this machine.
    #[cfg(target_os = "linux")]
    pub(crate) fn server(&self) -> Option<u32> {
        let credentials = sockopt::socket_peercred(&self.socket).ok()?;
        credentials.pid.as_raw_nonzero().get().try_into().ok()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn server(&self) -> Option<u32> {
        None
    }

    /// Sends a request and returns the answer, which must have this command.
    pub(super) fn ask(
        &mut self,
        request: &'static str,
        words: &str,
        expected: &str,
    ) -> Result<Line, PmiError> {
        self.ask_within(request, words, expected, PATIENCE)
    }

    pub(super) fn ask_within(
        &mut self,
        request: &'static str,
        words: &str,
        expected: &str,
        patience: Duration,
    ) -> Result<Line, PmiError> {
        let until = Instant::now() + patience;
        self.send(request, &format!("cmd={request}{words}\n"), until)?;
        let line = self.receive(request, expected, patience, until)?;
        // What follows would be lost for the program that asks next.
        if self.rest.is_empty() { Ok(line) } else { Err(line.malformed("more than one line")) }
    }

    /// Tells the server that this process's exit is not a failure. The server then closes the
    /// connection.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, or has closed the connection.
    pub fn finalize(mut self) -> Result<(), PmiError> {
        self.ask("finalize", "", "finalize_ack").map(drop)
    }

    fn send(&mut self, request: &'static str, text: &str, until: Instant) -> Result<(), PmiError> {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(request, PollFlags::OUT, PATIENCE, until)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(PmiError::Closed(request)),
                Err(error) => return Err(PmiError::Broken { request, reason: error.into() }),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        request: &'static str,
        expected: &str,
        patience: Duration,
        until: Instant,
    ) -> Result<Line, PmiError> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Line::new(request, expected, &line[..end]);
            }
            if self.rest.len() > LONGEST {
                return Err(PmiError::TooLong { request, most: LONGEST });
            }
            self.wait(request, PollFlags::IN, patience, until)?;
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(PmiError::Closed(request)),
                Ok((count, _)) => self.rest.extend_from_slice(&bytes[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(PmiError::Broken { request, reason: error.into() }),
            }
        }
    }

    /// Waits until the socket is ready, at most until the deadline.
    fn wait(
        &self,
        request: &'static str,
        events: PollFlags,
        patience: Duration,
        until: Instant,
    ) -> Result<(), PmiError> {
        let left = until.saturating_duration_since(Instant::now());
        let silent = PmiError::Silent { request, seconds: patience.as_secs() };
        let Ok(left) = Timespec::try_from(left) else { return Err(silent) };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), events)], Some(&left)) {
            Ok(0) => Err(silent),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(PmiError::Broken { request, reason: error.into() }),
        }
    }
}

/// The longest line that is accepted, in bytes. Servers announce values of at most a few kilobytes.
pub(super) const LONGEST: usize = 1 << 16;

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Line {
    request: &'static str,
    text: String,
}

impl Line {
    /// Checks that these bytes are the line that answers this request with this command.
    pub(super) fn new(
        request: &'static str,
        expected: &str,
        bytes: &[u8],
    ) -> Result<Line, PmiError> {
        // Flux' names of jobs begin with ƒ, so a store's name may be more than ASCII.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let line = Line { request, text };
        if line.text.as_bytes() != bytes || line.text.contains(char::is_control) {
            return Err(line.malformed("not printable text"));
        }
        match line.find("cmd") {
            Some(command) if command == expected => Ok(line),
            _ => Err(line.malformed("not the answer to this request")),
        }
    }

    /// Returns the value of a key, or `None` if the line does not have it.
    pub(super) fn find(&self, key: &str) -> Option<&str> {
        let mut pairs = self.text.split(' ').filter_map(|word| word.split_once('='));
        pairs.find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Returns the value of a key that the line must have.
    pub(super) fn get(&self, key: &str, why: &'static str) -> Result<&str, PmiError> {
        self.find(key).filter(|value| !value.is_empty()).ok_or_else(|| self.malformed(why))
    }

    /// Returns a number that the line must have.
    pub(super) fn number(&self, key: &str, why: &'static str) -> Result<usize, PmiError> {
        digits(self.get(key, why)?).ok_or_else(|| self.malformed(why))
    }

    /// Returns the return code, which is 0 for success.
    pub(super) fn code(&self) -> Result<i32, PmiError> {
        let why = "it has no return code";
        self.get("rc", why)?.parse().map_err(|_| self.malformed(why))
    }

    pub(super) fn malformed(&self, why: &'static str) -> PmiError {
        // What rank 0 stores has the job's secret.
        let shown = self.text.split(FORM).next().unwrap_or_default();
        PmiError::Malformed { request: self.request, answer: quote(shown), why }
    }
}
