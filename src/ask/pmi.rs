//! Asks the launcher's PMI-1 server for rank 0's host and the nodes, as `MPI_Init` asks it for the
//! other ranks.
//!
//! MPICH's and Intel MPI's Hydra, gforker, MVAPICH and Flux give a process its rank, but not rank
//! 0's host. They serve a store of keys and values, in lines of text over a socket: the descriptor
//! in `PMI_FD`, or the port in `PMI_PORT`. Rank 0 stores its host there, and all ranks read it.
//!
//! Limits: all ranks have to ask, because they wait for each other. Launchers other than Flux take
//! the exit of a process that has asked for the failure of an MPI program, and kill the others on
//! the node, unless the process says goodbye: [`Link::finalize`]. After that, the process has no
//! server anymore, so the goodbye must be the last that the launcher hears of it. Only the command
//! can arrange that, with a process that outlasts the program (`keep`).

mod link;
mod nodes;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use link::{Call, malformed};
use mpienv_core::seam::{Answer, Server};
use mpienv_core::{Host, Token};

pub use link::{Link, inherited};

/// The first word of what rank 0 stores, which changes with its form.
const FORM: &str = "mpienv1";

/// The number of the descriptor that the launcher has left open.
pub(crate) const FD: &str = "PMI_FD";
/// Where the server listens, as `host:port`, and the number by which it knows this process.
pub(crate) const PORT: &str = "PMI_PORT";
pub(crate) const ID: &str = "PMI_ID";

/// Separates a value's words: PMI allows no blanks, and launchers' own values have it too.
const BETWEEN: char = '#';
/// How many bytes the secret has.
const SECRET: usize = 32;
/// How often a job can ask.
const MOST_QUESTIONS: usize = 1000;

/// Returns the error for a limit of the server that is too low.
fn no_room(what: &str, length: usize, most: usize) -> String {
    format!("the launcher stores at most {most} bytes, and {what} has {length}")
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Question {
    /// This process's rank.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The name of this process's host.
    pub host: Option<String>,
    /// How long the other ranks may take.
    pub patience: Duration,
}

impl Question {
    /// Asks over a connection: for this process's node, if the launcher provides the nodes of all
    /// ranks. Unless that shows that there is one node, it also asks for a secret and for rank 0's
    /// host, by the name that the host has for itself.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, or if not all ranks ask.
    pub fn ask(&self, link: &mut Link) -> Result<Answer, String> {
        let mut store = Store::open(link)?;
        let number = store.asked_before()?;
        let mapping = store.get("PMI_process_mapping")?;
        let place = mapping.and_then(|mapping| nodes::place(self.rank, self.size, &mapping));
        let answer = place.unwrap_or(Answer::of(Server::Pmi));
        if answer.node_count == Some(1) {
            return Ok(answer);
        }
        let key = key(number);
        // No rank may find this question's key while it still counts the earlier ones.
        store.barrier(self)?;
        if self.rank == 0 {
            store.put(&key, &self.value())?;
        }
        store.barrier(self)?;
        let (host, secret) = store.read(&key)?;
        Ok(Answer { host: Some(host), secret: secret.map(Token::new), ..answer })
    }

    /// Returns what rank 0 stores. The host is empty if the others could not use it: they wait, and
    /// must learn that.
    fn value(&self) -> String {
        let is_usable = |name: &&str| {
            name.parse::<Host>().is_ok_and(|host| !host.is_loopback()) && !name.contains(BETWEEN)
        };
        let host = self.host.as_deref().filter(is_usable).unwrap_or_default();
        format!("{FORM}{BETWEEN}{host}{BETWEEN}{}", secret().unwrap_or_default())
    }
}

/// Returns random bytes as text. `None` if the system provides none.
fn secret() -> Option<String> {
    let mut bytes = [0; SECRET];
    File::open("/dev/urandom").ok()?.read_exact(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn key(number: usize) -> String {
    format!("mpienv-{number}")
}

/// The job's keys and values.
struct Store<'a> {
    link: &'a mut Link,
    name: String,
    longest_key: usize,
    longest_value: usize,
}

impl Store<'_> {
    fn open(link: &mut Link) -> Result<Store<'_>, String> {
        let version = " pmi_version=1 pmi_subversion=1";
        let line = link.ask(&Call::of("init"), version, "response_to_init")?;
        let why = "the launcher does not serve PMI-1";
        if line.code()? != 0 || line.number("pmi_version", why)? != 1 {
            return Err(line.malformed(why));
        }
        let line = link.ask(&Call::of("get_maxes"), "", "maxes")?;
        let limit = |key| line.number(key, "it does not say how long values may be");
        let (longest_name, longest_key) = (limit("kvsname_max")?, limit("keylen_max")?);
        let longest_value = limit("vallen_max")?;
        let line = link.ask(&Call::of("get_my_kvsname"), "", "my_kvsname")?;
        let name = line.get("kvsname", "it has no name")?.to_owned();
        if name.len() > longest_name {
            return Err(line.malformed("the name is longer than the launcher allows"));
        }
        Ok(Store { link, name, longest_key, longest_value })
    }

    /// Returns how often all ranks have asked.
    fn asked_before(&mut self) -> Result<usize, String> {
        for number in 0..MOST_QUESTIONS {
            if self.get(&key(number))?.is_none() {
                return Ok(number);
            }
        }
        Err(no_room("the list of questions of this job", MOST_QUESTIONS, MOST_QUESTIONS))
    }

    fn get(&mut self, key: &str) -> Result<Option<String>, String> {
        let words = format!(" kvsname={} key={key}", self.name);
        let line = self.link.ask(&Call::of("get"), &words, "get_result")?;
        if line.code()? != 0 {
            return Ok(None);
        }
        let value = line.get("value", "it has no value")?;
        if value.len() > self.longest_value {
            return Err(line.malformed("the value is longer than the launcher allows"));
        }
        Ok(Some(value.to_owned()))
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key.len() > self.longest_key {
            return Err(no_room("a key of mpienv", key.len(), self.longest_key));
        }
        if value.len() > self.longest_value {
            return Err(no_room("a value of mpienv", value.len(), self.longest_value));
        }
        let words = format!(" kvsname={} key={key} value={value}", self.name);
        let line = self.link.ask(&Call::of("put"), &words, "put_result")?;
        if line.code()? == 0 { Ok(()) } else { Err(line.malformed("it does not store the value")) }
    }

    /// Waits until every rank is here.
    fn barrier(&mut self, question: &Question) -> Result<(), String> {
        let &Question { rank, size, patience, .. } = question;
        let silent = format!(
            "rank {rank} of {size} has asked for rank 0's host, and not all other ranks have within {} s: \
             all ranks must run the same mpienv command",
            patience.as_secs()
        );
        let call = Call { request: "barrier_in", until: Instant::now() + patience, silent };
        let line = self.link.ask(&call, "", "barrier_out")?;
        // Only some launchers give a code.
        match line.find("rc") {
            None | Some("0") => Ok(()),
            Some(_) => Err(line.malformed("the ranks cannot wait for each other")),
        }
    }

    /// Returns rank 0's host and the secret.
    fn read(&mut self, key: &str) -> Result<(Host, Option<String>), String> {
        let value = self.get(key)?.unwrap_or_default();
        // Not the value itself: it has the secret.
        let malformed = |why| malformed("get", &format!("a value of {} bytes", value.len()), why);
        let mut words = value.split(BETWEEN);
        let mut word = || words.next();
        let (Some(FORM), Some(host), Some(secret), None) = (word(), word(), word(), word()) else {
            return Err(malformed("not what this version of mpienv stores on rank 0"));
        };
        if host.is_empty() {
            return Err("rank 0's host has no name by which other hosts know it".to_owned());
        }
        let host = host.parse().map_err(|_| malformed("it does not name a host"))?;
        let is_hex = secret.len() == 2 * SECRET && secret.bytes().all(|b| b.is_ascii_hexdigit());
        match secret {
            "" => Ok((host, None)),
            _ if is_hex => Ok((host, Some(secret.to_owned()))),
            _ => Err(malformed("it has no secret")),
        }
    }
}
