//! A launcher's PMI-1 server, for tests: a valid one for several ranks, and one that says anything.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use mpienv_ask::seam::{Link, Question};
use mpienv_core::seam::Answer;

/// What all ranks of a job share.
#[derive(Default)]
struct Job {
    values: HashMap<String, String>,
    /// How many ranks wait at the barrier.
    waiting: u32,
    /// How many barriers are over.
    over: u32,
    /// Every request's command.
    heard: BTreeSet<String>,
}

/// A server for a job of this many ranks.
#[derive(Clone)]
pub struct Server {
    size: u32,
    /// What its store is called.
    name: &'static str,
    /// The answer to a request for a key that it does not have.
    missing: &'static str,
    job: Arc<(Mutex<Job>, Condvar)>,
}

impl Server {
    /// Starts a server; gforker's has no mapping.
    pub fn new(size: u32, mapping: Option<&str>) -> Server {
        let missing = "get_result rc=-1 msg=not_found value=unknown";
        let server = Server { size, name: "kvs_1", missing, job: Arc::default() };
        let mapping = mapping.map(|mapping| ("PMI_process_mapping".into(), mapping.to_owned()));
        server.job.0.lock().unwrap().values.extend(mapping);
        server
    }

    /// Answers as Flux does.
    pub fn like_flux(self) -> Server {
        Server { name: "ƒNELAWE3", missing: "get_result rc=4", ..self }
    }

    /// Returns whether any rank has sent this command.
    pub fn heard(&self, command: &str) -> bool {
        self.job.0.lock().unwrap().heard.contains(command)
    }

    /// Returns a connection of one rank.
    pub fn connect(&self) -> UnixStream {
        let (rank, mut served) = UnixStream::pair().unwrap();
        let server = self.clone();
        thread::spawn(move || {
            let requests = BufReader::new(served.try_clone().unwrap());
            server.serve(requests, &mut served);
        });
        rank
    }

    /// Answers requests until the rank closes the connection.
    pub fn serve(&self, requests: impl BufRead, answers: &mut impl Write) {
        for line in requests.lines().map_while(Result::ok) {
            let word = |key: &str| {
                let words = line.split(' ').filter_map(|word| word.split_once('='));
                words.clone().find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
            };
            let request = word("cmd").unwrap();
            self.job.0.lock().unwrap().heard.insert(request.clone());
            let answer = match &*request {
                "initack" => "initack\ncmd=set size=2\ncmd=set rank=0\ncmd=set debug=0".into(),
                "init" => "response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
                "get_maxes" => "maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
                "get_my_kvsname" => format!("my_kvsname kvsname={}", self.name),
                "get" | "put" if word("kvsname").as_deref() != Some(self.name) => {
                    panic!("another store: {line}")
                }
                "get" => match self.job.0.lock().unwrap().values.get(&word("key").unwrap()) {
                    Some(value) => format!("get_result rc=0 msg=success value={value}"),
                    None => self.missing.into(),
                },
                "put" => {
                    let (key, value) = (word("key").unwrap(), word("value").unwrap());
                    let old = self.job.0.lock().unwrap().values.insert(key, value);
                    assert!(old.is_none(), "a key is put once: {line}");
                    "put_result rc=0 msg=success".into()
                }
                "barrier_in" => {
                    self.wait();
                    "barrier_out".into()
                }
                "finalize" => "finalize_ack".into(),
                other => panic!("{other}"),
            };
            if answers.write_all(format!("cmd={answer}\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn wait(&self) {
        let (job, changed) = &*self.job;
        let mut job = job.lock().unwrap();
        job.waiting += 1;
        if job.waiting == self.size {
            (job.waiting, job.over) = (0, job.over + 1);
            changed.notify_all();
            return;
        }
        let own = job.over;
        drop(changed.wait_while(job, |job| job.over == own).unwrap());
    }
}

/// What a rank asks.
pub fn question(rank: u32, size: u32, patience: Duration) -> Question {
    Question { rank, size, host: Some(format!("node{rank}")), patience }
}

/// Valid answers for rank 0 of 2, one line each.
pub const ANSWERS: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
cmd=my_kvsname kvsname=kvs_134_0_104386740_nodeA
cmd=get_result rc=-1 msg=key_mpienv-0_not_found value=unknown
cmd=get_result rc=0 msg=success value=(vector,(0,2,1))
cmd=barrier_out
cmd=put_result rc=0 msg=success
cmd=barrier_out tag=0
cmd=get_result rc=0 value=mpienv1#node0#00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
";

/// What Flux 0.88.0 has answered rank 0 of 2.
pub const ANSWERS_OF_FLUX: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024
cmd=my_kvsname rc=0 kvsname=ƒ4Ac84Du
cmd=get_result rc=4
cmd=get_result rc=0 value=(vector,(0,2,1))
cmd=barrier_out rc=0
cmd=put_result rc=0
cmd=barrier_out rc=0
cmd=get_result rc=0 value=mpienv1#node0#00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
";

/// What rank 0 of 2 makes of a server that answers each request with the next line, whatever is in
/// it, and then closes the connection.
pub fn heard(answers: &[u8]) -> Result<Answer, String> {
    let (rank, mut server) = UnixStream::pair().unwrap();
    let answers = answers.to_vec();
    let serving = thread::spawn(move || {
        let mut requests = BufReader::new(server.try_clone().unwrap());
        for line in answers.split_inclusive(|&byte| byte == b'\n') {
            if requests.read_until(b'\n', &mut Vec::new()).is_err()
                || server.write_all(line).is_err()
            {
                return;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Write);
        let _ = requests.read_to_end(&mut Vec::new());
    });
    let mut link = Link::of(rank.into());
    let heard = question(0, 2, Duration::from_secs(600)).ask(&mut link);
    drop(link);
    serving.join().unwrap();
    heard
}
