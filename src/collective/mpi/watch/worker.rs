//! The watch of every rank except 0, which monitors rank 0 and receives its reports.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::{LAUNCHER_FIRST, Message, Own};
use crate::error::CollectiveError;
use crate::host_info::Listener;
use crate::rendezvous::handshake::{ConnectionKey, Introduced, Purpose, Refusal};
use crate::rendezvous::star::{Channel, Heard, Star};
use crate::value::rank::Rank;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
/// How long each of rank 0's addresses may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// Watches until this rank exits. Returns the error if another rank is lost or late before that.
/// Drops `is_known` once rank 0 knows of this rank, or cannot be reached.
pub(super) fn watch(
    mut own: Own,
    listens: Option<Listener>,
    mut star: Star,
    is_known: Sender<Infallible>,
) -> Option<CollectiveError> {
    if let Some(channel) = listens.and_then(|listens| connect(&own, &listens)) {
        // Without a connection, this rank still notices that it waits in vain.
        let _ = star.add(channel);
        // It arrives even if this process is killed now.
        star.send_to_all(&own.beat());
    }
    drop(is_known);
    let (mut is_over, mut has_left) = (false, false);
    let late = loop {
        let beat = own.beat();
        let heard = star.turn(&beat).unwrap_or_default();
        if own.has_ended() {
            break None;
        }
        for (_, heard) in heard {
            let said = match heard {
                Heard::Came => continue,
                Heard::Said(bytes) => Message::of(&bytes),
                Heard::Lost(error) => Err(error),
            };
            match said {
                Ok(Message::Beat { .. }) => {}
                // Rank 0 is done, and the others soon will be.
                Ok(last @ (Message::Bye | Message::GaveUp)) => {
                    (is_over, has_left) = (true, last == Message::Bye);
                }
                Ok(found) => return own.error(&found),
                Err(_) if is_over => {}
                Err(error) => {
                    // Ends this process too, if the launcher ends all ranks because of another one:
                    // rank 0 often ends first, before it can name that rank.
                    if error.kind() != io::ErrorKind::TimedOut
                        && own.heartbeat.ends_within(LAUNCHER_FIRST, || false)
                    {
                        return None;
                    }
                    return own.error(&Message::lost(0, &error));
                }
            }
        }
        if is_over {
            star.forget(0);
        }
        if own.has_waited_in_vain(Instant::now()) {
            // This rank exits on its own: rank 0 must not report it as lost.
            let found = if has_left { Message::Left { rank: 0 } } else { Message::GaveUp };
            break own.error(&found);
        }
    };
    // If this fails, rank 0 sees the connection close.
    let last = if late.is_some() { Message::GaveUp } else { Message::Bye };
    star.send_to_all(&last.bytes());
    late
}

/// Connects to rank 0 at the first of its addresses that answers within the timeout.
fn connect(own: &Own, listens: &Listener) -> Option<Channel> {
    let here: &[IpAddr] = &[IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let is_here = own.host(0) == own.host(own.rank.index());
    let here = if is_here { here } else { &[] };
    let deadline = Instant::now() + own.times.silence;
    let key = ConnectionKey::new(&listens.key, Purpose::Watch, 0);
    while Instant::now() < deadline && !own.has_ended() {
        for &address in here.iter().chain(&listens.addresses) {
            let address = SocketAddr::new(address, listens.port);
            if let Ok(channel) = shake_hands(address, &key, own.rank) {
                return Some(channel);
            }
        }
        thread::sleep(RETRY);
    }
    None
}

/// Connects and waits for rank 0's welcome: seen from here, the address may belong to another
/// machine.
pub(super) fn shake_hands(
    address: SocketAddr,
    key: &ConnectionKey,
    rank: Rank,
) -> Result<Channel, Refusal> {
    let stream = TcpStream::connect_timeout(&address, ANSWER)?;
    let introduced = Introduced::new(stream, Instant::now() + ANSWER, key, rank)?;
    let (stream, directions) = introduced.welcomed()?;
    Ok(Channel { rank: 0, stream, directions })
}
