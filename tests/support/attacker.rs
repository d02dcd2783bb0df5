//! An attacker that knows the guide's page on the wire format and the job's token, which is empty
//! without a secret.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::wire::{GREETING, PUBLIC_OF_RANK, Session, hmac, own_version, sha256};

/// How much of what an attacker sends the system holds for each connection.
const HELD: usize = 16 * 1024;
const ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
const LONGEST: u32 = 1 << 20;
static OF_LONGEST: LazyLock<[u8; 32]> = LazyLock::new(|| sha256(&[0; LONGEST as usize]));

/// The fields of a hello that an attacker chooses.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    /// The key of the job or of its launches.
    pub key: &'a [u8; 32],
    pub protocol: u16,
    pub rank: u32,
    pub size: u32,
    pub purpose: u8,
    /// The length of the blob, which consists of zeros.
    pub length: u32,
    /// The rank's own master port.
    pub port: u16,
}

impl<'a> Claim<'a> {
    /// The longest blob of this rank.
    pub fn long(key: &'a [u8; 32], rank: u32, size: u32) -> Claim<'a> {
        Claim { key, protocol: own_version()[0], rank, size, purpose: 0, length: LONGEST, port: 1 }
    }

    /// The hello that answers a greeting.
    pub fn hello(self, greeting: &[u8]) -> Said {
        let mut front = b"mpienv\r\n".to_vec();
        let [_, major, minor, patch] = own_version();
        [self.protocol, major, minor, patch]
            .iter()
            .for_each(|part| front.extend(part.to_be_bytes()));
        front.extend(self.rank.to_be_bytes());
        front.extend(self.size.to_be_bytes());
        front.push(self.purpose);
        front.extend(self.length.to_be_bytes());
        front.extend(self.port.to_be_bytes());
        // The job and the attempt.
        front.extend([0; 16 + 4]);
        front.extend(*PUBLIC_OF_RANK);
        let mut session = Session::of_key(self.key, greeting, &front);
        front.extend(session.of_rank.tag(b""));
        let blob = self.length.min(LONGEST) as usize;
        let digest = if blob == LONGEST as usize { *OF_LONGEST } else { sha256(&vec![0; blob]) };
        Said {
            front,
            zeros: blob,
            back: hmac(&session.of_rank.key, &[&1u64.to_be_bytes(), &digest]).to_vec(),
        }
    }
}

/// What an attacker sends on a connection.
pub struct Said {
    pub front: Vec<u8>,
    pub zeros: usize,
    pub back: Vec<u8>,
}

impl Said {
    pub fn bytes(front: Vec<u8>) -> Said {
        Said { front, zeros: 0, back: Vec::new() }
    }

    /// The same, without its last byte.
    pub fn unfinished(mut self) -> Said {
        self.back.pop();
        self
    }

    /// What follows the first `at` bytes.
    fn rest(&self, at: usize) -> &[u8] {
        let (front, zeros) = (self.front.len(), self.zeros);
        match at {
            at if at < front => &self.front[at..],
            at if at < front + zeros => &ZEROS[..(front + zeros - at).min(ZEROS.len())],
            at => &self.back[at - front - zeros..],
        }
    }
}

/// One connection of the attacker.
pub struct Line {
    stream: TcpStream,
    greeting: Vec<u8>,
    said: Option<Said>,
    at: usize,
}

impl Line {
    /// Connects from this address of the host.
    pub fn open(from: Ipv4Addr, port: u16) -> io::Result<Line> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_send_buffer_size(HELD)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).into())?;
        socket.set_nonblocking(true)?;
        Ok(Line { stream: socket.into(), greeting: Vec::new(), said: None, at: 0 })
    }

    /// Reads and writes what is possible now. An error means that the connection is closed.
    pub fn go_on(&mut self, say: impl FnOnce(&[u8]) -> Said) -> io::Result<()> {
        while self.greeting.len() < GREETING {
            let mut bytes = [0; GREETING];
            match self.stream.read(&mut bytes[..GREETING - self.greeting.len()])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => self.greeting.extend(&bytes[..length]),
            }
        }
        let said = self.said.get_or_insert_with(|| say(&self.greeting));
        while !said.rest(self.at).is_empty() {
            self.at += self.stream.write(said.rest(self.at))?;
        }
        // It ignores the answer, and learns from the attempt to read it whether the connection is
        // closed.
        match self.stream.read(&mut [0; 4096])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Keeps `connections` to rank 0's port open `during` something, each of which says what `say`
/// returns for its number and the greeting. What rank 0 closes, the attacker opens again.
pub fn flood<T>(
    from: Ipv4Addr,
    port: u16,
    connections: u64,
    say: &(dyn Fn(u64, &[u8]) -> Said + Sync),
    during: impl FnOnce() -> T,
) -> T {
    let (is_over, numbers) = (AtomicBool::new(false), AtomicU64::new(0));
    let attack = || {
        let mut lines = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            while lines.len() < (connections / 2) as usize && !is_over.load(Ordering::Relaxed) {
                // For a while, the system may accept no more.
                let Ok(line) = Line::open(from, port) else { break };
                lines.push((line, numbers.fetch_add(1, Ordering::Relaxed)));
            }
            lines.retain_mut(|(line, number)| {
                match line.go_on(|greeting| say(*number, greeting)) {
                    Ok(()) => true,
                    Err(error) => error.kind() == ErrorKind::WouldBlock,
                }
            });
            thread::sleep(Duration::from_millis(1));
        }
    };
    thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(attack)));
        let done = during();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// A process's peak memory in KiB, or `None` if it has exited.
pub fn peak(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// The peak memory of a process in KiB, until it exits or what happens `during` it is over.
pub fn peak_during<T>(process: u32, during: impl FnOnce() -> T) -> (T, u64) {
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed)
                && let Some(now) = peak(process)
            {
                most.fetch_max(now, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let done = during();
        is_over.store(true, Ordering::Relaxed);
        done
    });
    (done, most.into_inner())
}
