//! What a program may set of a rendezvous: each setter of [`Rendezvous`].

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::Rendezvous;
use crate::auth::Run;
use crate::munge::Wanted;
use crate::seam::LONGEST_TIMEOUT;
use crate::value::munge::Munge;
use crate::value::port::Port;

impl Rendezvous {
    /// Sets how long to wait for all ranks, from the start of `all_gather` or `gather`: at most ten
    /// years.
    ///
    /// A rank that rank 0 has welcomed waits until rank 0's time is over, which begins when rank 0
    /// starts, but no longer than this time once more. If rank 0 or another rank then stops
    /// answering, the wait may take up to ten seconds longer: five to ask all ranks whether they
    /// are still there, and five to send the report.
    pub fn timeout(self, timeout: Duration) -> Rendezvous {
        Rendezvous { timeout: timeout.min(LONGEST_TIMEOUT), ..self }
    }

    /// Sets the token: at most [`LONGEST_TOKEN`](crate::LONGEST_TOKEN) bytes, which only the ranks
    /// of this job share. It is never sent.
    ///
    /// A token that is empty or blank is an error when the ranks meet, because a user who sets one
    /// believes that it protects the meeting. A meeting without a token does not call this method.
    pub fn token(self, token: impl Into<Vec<u8>>) -> Rendezvous {
        Rendezvous { token: Some(token.into()), ..self }
    }

    /// Makes the ranks authenticate with MUNGE: only processes of this user can meet, without a
    /// secret token. All ranks need this setting. A token is still compared.
    ///
    /// Each rank runs `munge` and then `unmunge`, each of which takes some milliseconds. A rank on
    /// whose host `munge` fails gets an error at once. With [`auto`](Munge::is_auto), ranks on
    /// whose host it fails, or takes more than half of the timeout, do not authenticate with
    /// MUNGE: they meet only each other.
    ///
    /// ```
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Munge, Port, Rank};
    ///
    /// // A job of one rank needs no MUNGE.
    /// let alone = Rendezvous::new(Rank::ALONE, Host::LOOPBACK, Port::ONE_NODE);
    /// let alone = alone.munge(Munge::default());
    /// assert!(alone.gather("hello")?.is_some());
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    pub fn munge(self, munge: Munge) -> Rendezvous {
        Rendezvous { munge: Wanted::by(munge), ..self }
    }

    /// Sets the job's identity and the number of the attempt, which must be the same on all ranks.
    /// Both go into the keys.
    ///
    /// Rank 0 rejects ranks of another job with the same token, and ranks left over from another
    /// attempt, with an error that says so. By default, the identity is empty and the attempt is 0.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    /// # let free = listener.local_addr().unwrap().port();
    /// # drop(listener);
    /// # let port = Port::new(free).unwrap();
    /// let at = move |index, attempt| {
    ///     let rank = Rank::new(index, 2).expect("0 and 1 are ranks of 2");
    ///     let rendezvous = Rendezvous::new(rank, Host::LOOPBACK, port);
    ///     let rendezvous = rendezvous.token("secret").job("job 17", attempt);
    ///     rendezvous.timeout(Duration::from_secs(20)).gather("")
    /// };
    /// let first = std::thread::spawn(move || at(0, 3));
    /// // Left over from the attempt before.
    /// let error = at(1, 2).unwrap_err();
    /// let belongs = "rank 1 belongs to attempt 2 of this job, and rank 0 to attempt 3";
    /// assert!(error.to_string().starts_with(belongs));
    /// at(1, 3)?;
    /// assert_eq!(first.join().unwrap()?.map(|meeting| meeting.members().len()), Some(2));
    /// # Ok::<(), mpienv::rendezvous::RendezvousError>(())
    /// ```
    pub fn job(self, identity: impl AsRef<[u8]>, attempt: u32) -> Rendezvous {
        Rendezvous { run: Run::new(identity.as_ref(), attempt), ..self }
    }

    /// Sets the address of its host that rank 0 listens on; `0.0.0.0` or `::` for every address.
    ///
    /// By default, rank 0 listens on the master's address if it belongs to rank 0's host, and
    /// otherwise on every address: see [`Meeting::listened`](crate::Meeting::listened).
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use mpienv::rendezvous::{Rendezvous, RendezvousError};
    /// use mpienv::{Host, Port, Rank};
    ///
    /// // No host has an address of the documentation's network.
    /// let rendezvous = Rendezvous::new(Rank::new(0, 2)?, Host::LOOPBACK, Port::ONE_NODE);
    /// let rendezvous = rendezvous.bind([203, 0, 113, 9].into());
    /// assert!(matches!(rendezvous.gather(""), Err(RendezvousError::Listen { .. })));
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    pub fn bind(self, address: IpAddr) -> Rendezvous {
        Rendezvous { bind: Some(address), ..self }
    }

    /// Sets a socket that listens already, on which rank 0 takes connections instead of binding its
    /// port. Other ranks do not use it.
    ///
    /// With it, rank 0 can let the system choose a port, and publish the address by other means,
    /// such as a file or a store, without another program taking the port meanwhile. The other
    /// ranks take the published address as host and port. The socket stays open until this value
    /// and its clones are dropped. None by default.
    ///
    /// ```
    /// use std::net::TcpListener;
    /// use mpienv::rendezvous::Rendezvous;
    /// use mpienv::{Host, Port, Rank};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let port = Port::new(listener.local_addr()?.port()).expect("the system has chosen one");
    /// let rank = |index| {
    ///     let rank = Rank::new(index, 2)?;
    ///     Ok::<_, mpienv::RankError>(Rendezvous::new(rank, Host::LOOPBACK, port))
    /// };
    /// let (first, second) = (rank(0)?.listener(listener), rank(1)?);
    /// let second = std::thread::spawn(move || second.all_gather("world"));
    /// let meeting = first.all_gather("hello")?;
    /// assert_eq!(meeting.members()[1].blob(), b"world");
    /// # second.join().expect("rank 1 does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener(self, listener: TcpListener) -> Rendezvous {
        Rendezvous { listener: Some(Arc::new(listener)), ..self }
    }

    /// Sets the port of ranks on which the master port was not set, for example because MASTER_PORT
    /// reached only some hosts.
    ///
    /// Shortly before the deadline, rank 0 also listens on this port, and ranks that have not found
    /// rank 0 also try it, so that the error names each rank's port. This requires a token, which
    /// keeps other jobs' ranks out. None by default.
    pub fn default_port(self, port: Port) -> Rendezvous {
        Rendezvous { default_port: Some(port), ..self }
    }
}
