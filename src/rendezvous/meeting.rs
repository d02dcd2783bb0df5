//! What a rank gets once all ranks have met.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::auth::{self, Bytes32};
use super::table::Row;
use mpienv_core::Port;

/// What a rank gets from [`Rendezvous::gather_with_reply`](super::Rendezvous::gather_with_reply).
///
/// ```
/// use mpienv::rendezvous::{Gathered, Rendezvous};
/// use mpienv::{Host, Port, Rank};
/// # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let port = Port::new(free).unwrap();
///
/// // Rank 0 counts all bytes that came; the others hear how many.
/// let count = move |index: u32| {
///     let rank = Rank::new(index, 2).expect("0 and 1 are ranks of 2");
///     let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port);
///     rendezvous.gather_with_reply("four", |all| {
///         all.members().iter().map(|member| member.blob().len()).sum::<usize>().to_string().into()
///     })
/// };
/// let other = std::thread::spawn(move || count(1));
/// assert!(matches!(count(0)?, Gathered::All(meeting) if meeting.members().len() == 2));
/// assert!(matches!(other.join().unwrap()?, Gathered::Reply(sum) if sum == b"8"));
/// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
/// ```
#[derive(Clone, Debug)]
pub enum Gathered {
    /// On rank 0: what all ranks brought.
    All(Meeting),
    /// On any other rank: rank 0's reply.
    Reply(Vec<u8>),
}

/// What a rank knows once all ranks have met.
///
/// ```
/// use mpienv::rendezvous::{Meeting, Member, Rendezvous};
/// use mpienv::{Host, Port, Rank};
///
/// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, Port::ONE_NODE);
/// let meeting: Meeting = alone.all_gather("hello")?;
/// let member: &Member = &meeting.members()[0];
/// assert!(member.address().is_loopback());
/// // A rank that is alone opens no port.
/// assert!(meeting.listened().is_empty() && meeting.rejected() == 0);
/// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
/// ```
#[derive(Clone)]
pub struct Meeting {
    members: Vec<Member>,
    pub(super) rejected: u64,
    pub(super) listened: Vec<IpAddr>,
    key: Bytes32,
}

/// Omits the key.
impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Meeting { members, rejected, listened, key: _ } = self;
        f.debug_struct("Meeting")
            .field("members", members)
            .field("rejected", rejected)
            .field("listened", listened)
            .finish_non_exhaustive()
    }
}

impl Meeting {
    /// `reached` is the address by which this rank reaches rank 0's host.
    pub(super) fn new(rows: Vec<Row>, reached: SocketAddr, key: Bytes32) -> Meeting {
        let scope = match reached {
            SocketAddr::V6(reached) => reached.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let member = |row: Row| {
            let address = row.origin.unwrap_or(reached.ip().to_canonical());
            Member { address, scope, blob: row.blob }
        };
        let members = rows.into_iter().map(member).collect();
        Meeting { members, rejected: 0, listened: Vec::new(), key }
    }

    /// All ranks, in rank order, this one included.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many connections rank 0 rejected because they were not ranks of this job; 0 on the other
    /// ranks.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// The addresses that rank 0 listened on, with `::` for every address of its host. Empty on the
    /// other ranks, and in a job of one rank.
    #[must_use]
    pub fn listened(&self) -> &[IpAddr] {
        &self.listened
    }

    /// Derives a key for `purpose` that all ranks of this meeting have, and that no one can derive
    /// without the token.
    ///
    /// The key differs for every meeting and every purpose. If the token is not a secret, neither
    /// is the key.
    ///
    /// ```
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, Port::ONE_NODE).token("secret");
    /// let (first, second) = (alone.all_gather("")?, alone.all_gather("")?);
    /// assert_eq!(first.derive_key("all-reduce"), first.derive_key("all-reduce"));
    /// assert_ne!(first.derive_key("all-reduce"), first.derive_key("broadcast"));
    /// assert_ne!(first.derive_key("all-reduce"), second.derive_key("all-reduce"));
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    #[must_use]
    pub fn derive_key(&self, purpose: &str) -> [u8; 32] {
        auth::for_purpose(&self.key, purpose.as_bytes())
    }
}

/// A rank as the meeting knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    address: IpAddr,
    scope: u32,
    blob: Box<[u8]>,
}

impl Member {
    /// The bytes that the rank brought.
    #[must_use]
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// The rank's IP address as rank 0 saw it. If that was a loopback address, the address by which
    /// this rank reached rank 0.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The address for connecting to a port of that rank. A link-local address gets the zone by
    /// which this rank reached rank 0.
    #[must_use]
    pub fn at(&self, port: Port) -> SocketAddr {
        match self.address {
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                SocketAddrV6::new(address, port.get(), 0, self.scope).into()
            }
            address => SocketAddr::new(address, port.get()),
        }
    }
}
