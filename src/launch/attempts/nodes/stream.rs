//! Frames on a connection, and who may have one.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

use super::codec::{Reader, Writer};

/// The first bytes of a connection's first frame.
const MAGIC: &[u8] = b"mpienv launch";
/// What a stranger may send, in bytes.
const LONGEST_HELLO: usize = 1 << 10;
/// The longest frame: how a node's workers ended, of which it has at most 65536.
pub(super) const LONGEST: usize = 1 << 20;
/// How long a connection may take for its first frame.
const HELLO: Duration = Duration::from_secs(5);
/// Connections that may be open and have not said who they are.
const MOST_UNKNOWN: usize = 64;
/// How often a listener is asked, and a first node that does not listen yet.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A node's connection at the first node.
pub(super) struct Known {
    pub node: u32,
    pub host: String,
    pub stream: TcpStream,
}

/// Sends a frame, in one write.
pub(super) fn send(mut stream: &TcpStream, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LONGEST);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    stream.write_all(&[&length.to_be_bytes(), body].concat())
}

/// Receives a frame that is not longer than this.
pub(super) fn receive(mut stream: &TcpStream, longest: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > longest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// The connections of all other nodes, in the order in which they came.
pub(super) fn accept(listener: &TcpListener, nodes: u32, key: &[u8], within: Duration) -> io::Result<Vec<Known>> {
    listener.set_nonblocking(true)?;
    let (to, from) = mpsc::channel();
    let deadline = Instant::now() + within;
    let mut known: Vec<Known> = Vec::new();
    let mut unknown = 0;
    let wanted = usize::try_from(nodes).unwrap_or(usize::MAX).saturating_sub(1);
    while known.len() < wanted {
        for answer in from.try_iter() {
            unknown -= 1;
            let is_new = |new: &Known| (1..nodes).contains(&new.node) && known.iter().all(|old| old.node != new.node);
            if let Some(new) = Option::<Known>::filter(answer, is_new) {
                send(&new.stream, &[])?;
                known.push(new);
            }
        }
        if Instant::now() >= deadline {
            let missing = (1..nodes).filter(|node| known.iter().all(|known| known.node != *node));
            let missing: Vec<_> = missing.take(10).map(|node| node.to_string()).collect();
            let text = format!("no connection from node {} within {} s", missing.join(", "), within.as_secs_f64());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        match listener.accept() {
            Ok((stream, _)) if unknown < MOST_UNKNOWN + wanted => {
                unknown += 1;
                let (to, key) = (to.clone(), key.to_vec());
                // The receiver has gone once all nodes are known.
                thread::Builder::new().spawn(move || drop(to.send(hello(stream, &key))))?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK_EVERY),
            // One connection that broke before it was taken.
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
    Ok(known)
}

/// Who has connected; `None` for a stranger.
fn hello(stream: TcpStream, key: &[u8]) -> Option<Known> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(HELLO)).ok()?;
    stream.set_nodelay(true).ok()?;
    let body = receive(&stream, LONGEST_HELLO).ok()?;
    let mut reader = Reader::new(&body);
    let is_known = reader.bytes()? == MAGIC && bool::from(reader.bytes()?.ct_eq(key));
    let (node, host) = (reader.number()?, reader.text()?);
    is_known.then_some(Known { node, host, stream })
}

/// A connection to the first node, which knows this node now.
pub(super) fn connect(to: &str, key: &[u8], node: u32, host: &str, within: Duration) -> io::Result<TcpStream> {
    let deadline = Instant::now() + within;
    let mut writer = Writer::new();
    writer.bytes(MAGIC);
    writer.bytes(key);
    writer.number(node);
    writer.bytes(host.as_bytes());
    let hello = writer.finish();
    loop {
        let error = match once(to, &hello, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            return Err(io::Error::new(error.kind(), format!("node {node} did not reach {to}: {error}")));
        }
        thread::sleep(LOOK_EVERY * 10);
    }
}

fn once(to: &str, hello: &[u8], deadline: Instant) -> io::Result<TcpStream> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in to.to_socket_addrs()? {
        let stream = match TcpStream::connect_timeout(&address, left()) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(left()))?;
        send(&stream, hello)?;
        // Empty: this node is known.
        receive(&stream, LONGEST)?;
        return Ok(stream);
    }
    Err(last)
}

/// Why a connection broke.
pub(super) fn reason(error: &io::Error, silence: Duration) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was heard from it for {} s", silence.as_secs_f64())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "its mpienv closed the connection".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Shutdown};

    use super::*;

    const KEY: &[u8] = &[7; 16];

    fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[test]
    fn strangers_with_another_key_or_half_a_hello_have_no_place_and_delay_no_node() {
        let (listener, address) = listener();
        let to = address.clone();
        let strangers = thread::spawn(move || {
            let long = TcpStream::connect(&to).unwrap();
            (&long).write_all(&[0xff; 8]).unwrap();
            let silent = TcpStream::connect(&to).unwrap();
            let half = TcpStream::connect(&to).unwrap();
            (&half).write_all(&[0, 0, 0, 40, 1, 2, 3]).unwrap();
            half.shutdown(Shutdown::Write).unwrap();
            // Another job's launch, and a place that does not exist.
            let guess = connect(&to, &[8; 16], 1, "elsewhere", Duration::from_millis(300));
            let outside = connect(&to, KEY, 2, "outside", Duration::from_millis(300));
            assert!(guess.is_err() && outside.is_err());
            let own = connect(&to, KEY, 1, "node\x1bB", Duration::from_secs(20)).unwrap();
            (long, silent, own)
        });
        let known = accept(&listener, 2, KEY, Duration::from_secs(20)).unwrap();
        assert_eq!(
            known.iter().map(|known| (known.node, known.host.as_str())).collect::<Vec<_>>(),
            [(1, "node\u{fffd}B")]
        );
        let (_, _, own) = strangers.join().unwrap();
        send(&own, b"hello").unwrap();
        assert_eq!(receive(&known[0].stream, LONGEST).unwrap(), b"hello");
    }

    #[test]
    fn a_node_that_does_not_connect_is_named_in_time() {
        let (listener, address) = listener();
        let other = thread::spawn(move || connect(&address, KEY, 2, "nodeC", Duration::from_secs(20)));
        let Err(error) = accept(&listener, 4, KEY, Duration::from_millis(500)) else { panic!() };
        assert_eq!(error.to_string(), "no connection from node 1, 3 within 0.5 s");
        drop(listener);
        drop(other.join().unwrap());
    }

    #[test]
    fn a_frame_has_a_limit() {
        let (listener, address) = listener();
        let to = TcpStream::connect(address).unwrap();
        let (from, _) = listener.accept().unwrap();
        assert!(send(&to, &vec![0; LONGEST + 1]).is_err());
        send(&to, &[1; 200]).unwrap();
        assert_eq!(receive(&from, 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
