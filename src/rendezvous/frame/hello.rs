//! The first message from a rank: its identity, the proof that it has the job's token, and its
//! blob.

use super::{GREETING, MAGIC, REPLY_HEAD, ReplyHead, Version, greeting, take};
use crate::LONGEST_BLOB;
use crate::auth::{Bytes32, Directions, Exchange, JobKey, LENGTH, Role, Run, digest};
use mpienv_core::Port;

/// Length of the part before the proof.
const CLAIM: usize = 83;
/// Rank 0 holds longer blobs of a few connections at a time only.
pub(crate) const SHORT_BLOB: usize = 1024;

/// Length of a hello without a blob.
const BARE: usize = CLAIM + 2 * LENGTH;
/// How many bytes of a hello to take at most before it is known whether its blob is long.
pub(crate) const FIRST: usize = BARE + SHORT_BLOB;

/// What a hello is for. Its number goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// To wait only for the report of a meeting.
    Report,
    /// To wait for the table of a meeting.
    Table,
    /// To report, at another port, the rank's own master port.
    OtherPort,
    /// To exchange the messages of collective calls with another rank.
    Collective,
    /// To be monitored by rank 0 in an MPI job.
    Watch,
}

impl Purpose {
    const ALL: [Purpose; 5] =
        [Purpose::Report, Purpose::Table, Purpose::OtherPort, Purpose::Collective, Purpose::Watch];
    /// The purposes that rank 0 of a meeting accepts.
    const OF_MEETING: [Purpose; 3] = [Purpose::Report, Purpose::Table, Purpose::OtherPort];

    /// The longest blob of such a hello.
    fn longest_blob(self) -> usize {
        match self {
            Purpose::Report | Purpose::Table => LONGEST_BLOB,
            Purpose::OtherPort | Purpose::Collective | Purpose::Watch => 0,
        }
    }
}

/// What this end knows about the job.
#[derive(Clone)]
pub(crate) struct Secret {
    /// `None` if the key does not come from a token.
    token: Option<Vec<u8>>,
    role: Role,
    pub(crate) run: Run,
    pub(crate) key: JobKey,
    /// The MUNGE credential that gives other ranks the key; empty without MUNGE.
    pub(crate) credential: Vec<u8>,
}

impl Secret {
    pub(crate) fn new(token: &[u8], role: Role, run: Run) -> Secret {
        Secret {
            token: Some(token.to_vec()),
            role,
            run,
            key: JobKey::new(token, role, run),
            credential: Vec::new(),
        }
    }

    /// Uses a key that both ends have.
    pub(crate) fn of_key(key: Bytes32) -> Secret {
        let (role, run, credential) = (Role::Ranks, Run::default(), Vec::new());
        Secret { token: None, role, run, key: JobKey::of_bytes(key), credential }
    }

    /// The key for the run of the job that the other end claims.
    fn key_of(&self, run: Run) -> JobKey {
        let token = self.token.as_ref().filter(|_| run != self.run);
        token.map_or_else(|| self.key.clone(), |token| JobKey::new(token, self.role, run))
    }
}

/// The first message from a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: Version,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) purpose: Purpose,
    /// The rank's own master port.
    pub(crate) port: Port,
    pub(crate) run: Run,
    pub(crate) blob: Vec<u8>,
}

impl Hello {
    /// Encodes the answer to a greeting, and derives the connection's keys. The caller has checked
    /// the blob's length. `None` if the greeting holds no part of a key exchange.
    ///
    /// Two ends of different versions do without the exchange: they only name each other.
    pub(crate) fn encode(
        &self,
        key: &JobKey,
        greeting: &[u8],
        exchange: Exchange,
    ) -> Option<(Vec<u8>, Directions)> {
        let mut out = Vec::with_capacity(CLAIM + LENGTH + self.blob.len() + LENGTH);
        out.extend(MAGIC);
        self.version.put(&mut out);
        out.extend(self.rank.to_be_bytes());
        out.extend(self.size.to_be_bytes());
        out.push(self.purpose as u8);
        out.extend(u32::try_from(self.blob.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(self.port.get().to_be_bytes());
        out.extend(self.run.job);
        out.extend(self.run.attempt.to_be_bytes());
        out.extend(exchange.public);
        let head = ReplyHead::decode(*greeting.first_chunk()?)?;
        let key = match head.version == self.version {
            true => key.exchanged(exchange, greeting.get(REPLY_HEAD..GREETING)?)?,
            false => key.clone(),
        };
        let mut directions = key.directions(greeting, &out).reversed();
        out.extend(directions.outgoing.tag(&digest(&[])));
        out.extend(&self.blob);
        out.extend(directions.outgoing.tag(&digest(&[&self.blob])));
        Some((out, directions))
    }
}

/// Why a connection is not one of this job's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reject {
    /// Not a hello, but for example from a port scanner or a browser.
    NotMpienv,
    /// A hello whose sender does not have this job's token.
    OtherJob,
    /// A hello with this job's token, but from another job or another attempt.
    OtherRun { rank: u32, run: Run },
    /// A hello of this job, from another version. All ranks of a job must run the same program.
    OtherVersion { rank: u32, version: Version },
    /// The proof was valid, but the rest of the hello was altered.
    Altered,
}

/// Reads one hello from bytes that arrive in any pieces.
///
/// Holds at most 115 bytes until the proof is valid, and then at most the blob's announced length
/// and its tag. The length is checked first, and memory is allocated only as bytes arrive.
#[derive(Debug)]
pub(crate) struct HelloReader {
    /// This end's part of the greeting, until the answer is complete.
    exchange: Option<Exchange>,
    head: Vec<u8>,
    hello: Option<Hello>,
    directions: Option<Directions>,
    blob_length: usize,
    /// What alone the hello may be for. `None` for the purposes of a meeting.
    purpose: Option<Purpose>,
}

impl HelloReader {
    /// Reads the answer to the greeting with this part of a key exchange, for this purpose or, if
    /// there is none, for one of a meeting.
    pub(crate) fn new(exchange: Exchange, purpose: Option<Purpose>) -> HelloReader {
        let (exchange, head) = (Some(exchange), Vec::new());
        let (hello, directions, blob_length) = (None, None, 0);
        HelloReader { exchange, head, hello, directions, blob_length, purpose }
    }

    /// Returns whether the sender has not proven yet that it has the token.
    pub(crate) fn is_unproven(&self) -> bool {
        self.directions.is_none()
    }

    /// The announced length of a long blob, once the proof was valid.
    pub(crate) fn long_blob(&self) -> Option<usize> {
        Some(self.blob_length).filter(|&length| self.hello.is_some() && length > SHORT_BLOB)
    }

    /// The rank of a proven hello whose blob is not complete.
    pub(crate) fn claimed_rank(&self) -> Option<u32> {
        self.hello.as_ref().map(|hello| hello.rank)
    }

    /// Takes the keys, once the proof was valid.
    pub(crate) fn take_directions(&mut self) -> Option<Directions> {
        self.directions.take()
    }

    /// Takes the next bytes. Returns the hello once it is complete.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        secret: &Secret,
    ) -> Result<Option<Hello>, Reject> {
        if self.hello.is_none() {
            let wanted = (CLAIM + LENGTH - self.head.len()).min(bytes.len());
            let (now, later) = bytes.split_at(wanted);
            self.head.extend(now);
            bytes = later;
            let known = self.head.len().min(MAGIC.len());
            if self.head[..known] != MAGIC[..known] {
                return Err(Reject::NotMpienv);
            }
            if self.head.len() < CLAIM + LENGTH {
                return Ok(None);
            }
            self.hello = Some(self.parse(secret)?);
        }
        let (Some(hello), Some(directions)) = (&mut self.hello, &mut self.directions) else {
            return Ok(None);
        };
        let whole = self.blob_length + LENGTH;
        if hello.blob.len() + bytes.len() > whole {
            return Err(Reject::NotMpienv);
        }
        if hello.blob.capacity() < hello.blob.len() + bytes.len() {
            // No more than the announced length, which counts in what rank 0 may hold.
            hello
                .blob
                .reserve_exact(bytes.len().max(hello.blob.len()).min(whole - hello.blob.len()));
        }
        hello.blob.extend(bytes);
        if hello.blob.len() < whole {
            return Ok(None);
        }
        let tag = hello.blob.split_off(self.blob_length);
        if !directions.incoming.verify(&digest(&[&hello.blob]), &tag) {
            return Err(Reject::Altered);
        }
        Ok(self.hello.take())
    }

    fn parse(&mut self, secret: &Secret) -> Result<Hello, Reject> {
        let (claim, proof) = self.head.split_at(CLAIM);
        let (hello, blob_length) = fields(claim).ok_or(Reject::NotMpienv)?;
        let mut key = secret.key_of(hello.run);
        let exchange = self.exchange.take().ok_or(Reject::NotMpienv)?;
        let greeting = greeting(&exchange.public, &secret.credential);
        if hello.version == Version::OWN {
            key = key.exchanged(exchange, &claim[CLAIM - LENGTH..]).ok_or(Reject::OtherJob)?;
        }
        let mut directions = key.directions(&greeting, claim);
        if !directions.incoming.verify(&digest(&[]), proof) {
            return Err(Reject::OtherJob);
        }
        self.directions = Some(directions);
        let Hello { version, rank, size, run, .. } = hello;
        if version != Version::OWN {
            return Err(Reject::OtherVersion { rank, version });
        }
        if run != secret.run {
            return Err(Reject::OtherRun { rank, run });
        }
        self.blob_length = usize::try_from(blob_length).unwrap_or(usize::MAX);
        let is_too_long = self.blob_length > hello.purpose.longest_blob();
        let is_wanted = match self.purpose {
            Some(purpose) => hello.purpose == purpose,
            None => Purpose::OF_MEETING.contains(&hello.purpose),
        };
        if is_too_long || rank >= size || !is_wanted {
            return Err(Reject::NotMpienv);
        }
        self.head = Vec::new();
        Ok(hello)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.head.capacity() + self.hello.as_ref().map_or(0, |hello| hello.blob.capacity())
    }
}

/// Parses the hello without its blob, and the blob's length.
fn fields(claim: &[u8]) -> Option<(Hello, u32)> {
    let mut rest = claim.strip_prefix(&MAGIC)?;
    let version = Version::take(&mut rest)?;
    let rank = u32::from_be_bytes(take(&mut rest)?);
    let size = u32::from_be_bytes(take(&mut rest)?);
    let [code] = take(&mut rest)?;
    let purpose = Purpose::ALL.into_iter().find(|&purpose| purpose as u8 == code)?;
    let blob_length = u32::from_be_bytes(take(&mut rest)?);
    let port = Port::new(u16::from_be_bytes(take(&mut rest)?))?;
    let run = Run { job: take(&mut rest)?, attempt: u32::from_be_bytes(take(&mut rest)?) };
    Some((Hello { version, rank, size, purpose, port, run, blob: Vec::new() }, blob_length))
}
