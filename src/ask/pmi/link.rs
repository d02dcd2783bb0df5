//! The connection to the launcher's server.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::FORM;
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
    pub(crate) fn of_number(number: RawFd) -> Result<Link, String> {
        let own = || {
            let socket = fcntl_dupfd_cloexec(inherited(number).ok_or(Errno::BADF)?, LOWEST)?;
            let is_stream = sockopt::socket_type(&socket)? == SocketType::STREAM;
            if is_stream { Ok(Link::of(socket)) } else { Err(Errno::PROTOTYPE) }
        };
        own().map_err(|error: Errno| {
            format!("it is not a connection to the launcher ({error}): something between the launcher and mpienv has closed it")
        })
    }

    /// Connects to the server at a port, which knows this process by this number.
    ///
    /// # Errors
    /// Returns an error if nothing listens at the port, or if what listens is not the launcher.
    pub fn of_port(host: &str, port: u16, id: u32) -> Result<Link, String> {
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
        let stream =
            connect().map_err(|error| format!("cannot connect to the launcher: {error}"))?;
        let mut link = Link::of(stream.into());
        let call = Call::of("initack");
        link.send(&call, &format!("cmd=initack pmiid={id}\n"))?;
        // After the answer come the size, the rank and the level of debugging, which variables show
        // too.
        for expected in ["initack", "set", "set", "set"] {
            link.receive(&call, expected)?;
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
    pub(super) fn ask(&mut self, call: &Call, words: &str, expected: &str) -> Result<Line, String> {
        self.send(call, &format!("cmd={}{words}\n", call.request))?;
        let line = self.receive(call, expected)?;
        // What follows would be lost for the program that asks next.
        if self.rest.is_empty() { Ok(line) } else { Err(line.malformed("more than one line")) }
    }

    /// Tells the server that this process's exit is not a failure. The server then closes the
    /// connection.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, or has closed the connection.
    pub fn finalize(mut self) -> Result<(), String> {
        self.ask(&Call::of("finalize"), "", "finalize_ack").map(drop)
    }

    fn send(&mut self, call: &Call, text: &str) -> Result<(), String> {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(call, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(call.failed(error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, call: &Call, expected: &str) -> Result<Line, String> {
        let request = call.request;
        let mut bytes = [0; 4096];
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Line::new(request, expected, &line[..end]);
            }
            if self.rest.len() > LONGEST {
                return Err(format!(
                    "the launcher's answer to `{request}` is longer than {LONGEST} bytes"
                ));
            }
            self.wait(call, PollFlags::IN)?;
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(call.failed(Errno::CONNRESET)),
                Ok((count, _)) => self.rest.extend_from_slice(&bytes[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(call.failed(error)),
            }
        }
    }

    /// Waits until the socket is ready, at most until the deadline.
    fn wait(&self, call: &Call, events: PollFlags) -> Result<(), String> {
        let left = Timespec::try_from(call.until.saturating_duration_since(Instant::now()));
        let Ok(left) = left else { return Err(call.silent.clone()) };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), events)], Some(&left)) {
            Ok(0) => Err(call.silent.clone()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(call.failed(error)),
        }
    }
}

/// What is asked.
pub(super) struct Call {
    pub request: &'static str,
    /// Until when the server may take to answer.
    pub until: Instant,
    /// The error if it takes longer.
    pub silent: String,
}

impl Call {
    /// A request that the server answers alone.
    pub(super) fn of(request: &'static str) -> Call {
        let seconds = PATIENCE.as_secs();
        let silent = format!("the launcher has not answered `{request}` for {seconds} s");
        Call { request, until: Instant::now() + PATIENCE, silent }
    }

    /// Returns the error for a socket that cannot be used.
    fn failed(&self, error: Errno) -> String {
        let request = self.request;
        if [Errno::PIPE, Errno::CONNRESET].contains(&error) {
            return format!(
                "the launcher has closed the connection at `{request}`: an MPI program or another mpienv may have ended it"
            );
        }
        format!("the connection to the launcher has failed during `{request}`: {error}")
    }
}

/// The longest line that is accepted, in bytes. Servers announce values of at most a few kilobytes.
const LONGEST: usize = 1 << 16;

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Line {
    request: &'static str,
    text: String,
}

impl Line {
    /// Checks that these bytes are the line that answers this request with this command.
    pub(super) fn new(request: &'static str, expected: &str, bytes: &[u8]) -> Result<Line, String> {
        // Flux' names of jobs begin with ƒ, so a store's name may be more than ASCII.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let line = Line { request, text };
        if line.text.as_bytes() != bytes || line.text.contains(char::is_control) {
            return Err(line.malformed("not printable text"));
        }
        match line.find("cmd") {
            Some(command) if command == expected => Ok(line),
            _ => Err(line.malformed(
                "not the answer to this request; another process of this rank may be asking at \
                 the same time",
            )),
        }
    }

    /// Returns the value of a key, or `None` if the line does not have it.
    pub(super) fn find(&self, key: &str) -> Option<&str> {
        let mut pairs = self.text.split(' ').filter_map(|word| word.split_once('='));
        pairs.find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Returns the value of a key that the line must have.
    pub(super) fn get(&self, key: &str, why: &'static str) -> Result<&str, String> {
        self.find(key).filter(|value| !value.is_empty()).ok_or_else(|| self.malformed(why))
    }

    /// Returns a number that the line must have.
    pub(super) fn number(&self, key: &str, why: &'static str) -> Result<usize, String> {
        digits(self.get(key, why)?).ok_or_else(|| self.malformed(why))
    }

    /// Returns the return code, which is 0 for success.
    pub(super) fn code(&self) -> Result<i32, String> {
        let why = "it has no return code";
        self.get("rc", why)?.parse().map_err(|_| self.malformed(why))
    }

    pub(super) fn malformed(&self, why: &'static str) -> String {
        // What rank 0 stores has the job's secret.
        let shown = self.text.split(FORM).next().unwrap_or_default();
        malformed(self.request, &quote(shown), why)
    }
}

/// Returns the error for an answer that is not one to this request.
pub(super) fn malformed(request: &str, answer: &str, why: &str) -> String {
    format!("the launcher has answered `{request}` with {answer}: {why}")
}
