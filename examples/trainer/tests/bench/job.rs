//! Starts the ranks of a benchmark, each as a thread or as another process of the same program.

#[path = "../../../sharding/tests/support/launcher.rs"]
mod launcher;
#[path = "../../../../tests/support/port.rs"]
mod port;
#[path = "../../../../tests/support/tool.rs"]
#[expect(dead_code, reason = "the command of mpienv is not run")]
pub mod tool;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use mpienv::collective::{Group, threads};
use mpienv::{ClusterInfo, Launch};
use mpienv_sharding::job::{self, Backend};

/// Why a benchmark fails.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A rank's work. The text names the transport, `threads`, `shared-memory`, `tcp` or `mpi`, or is
/// `alone` for one rank.
pub type Work = fn(&mut Group, &str) -> Result<(), Failure>;

const TIMEOUT: Duration = Duration::from_secs(60);
/// The argument that passes the transport to a rank.
const OVER: &str = "--over=";
const ALL: [&str; 4] = ["threads", "shared-memory", "tcp", "mpi"];

/// Prints `head`, then runs `work` with each number of ranks in `sizes`, over all transports or
/// those that the command line names. MPI is skipped if there is no `mpirun`.
pub fn run(head: &str, sizes: &[u32], work: Work) -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(over) = words.iter().find_map(|word| word.strip_prefix(OVER)) {
        let backend = Backend::from_str(over, false)?;
        let mut group =
            job::connect(backend, &ClusterInfo::from_env()?, TIMEOUT, &|_| (), &|_| ())?;
        return work(&mut group, over);
    }
    let named = |over: &&str| words.iter().any(|word| word == over);
    let some = ALL.iter().any(named);
    println!("{head}");
    for &size in sizes {
        if size == 1 {
            work(&mut Group::alone(), "alone")?;
            continue;
        }
        for over in ALL.into_iter().filter(|over| !some || named(over)) {
            start(size, over, work)?;
        }
    }
    Ok(())
}

fn start(size: u32, over: &str, work: Work) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let word = format!("{OVER}{over}");
    match over {
        "threads" => threads::run(size, TIMEOUT, |rank| work(rank, over))?.into_iter().collect(),
        "mpi" if cfg!(not(feature = "mpi")) || !tool::is_there("mpirun") => Ok(()),
        "mpi" => {
            let program = program.to_str().ok_or("the path of this program is not valid UTF-8")?;
            let mut job = launcher::job(Path::new("mpirun"), &[], size, program);
            job.arg(word).envs(tool::inherited("DATA_PATH").map(|folder| ("DATA_PATH", folder)));
            let status = job.status()?;
            if status.success() { Ok(()) } else { Err(status.to_string().into()) }
        }
        _ => Ok(Launch::new(&ClusterInfo::from_env()?, size)?.subreaper(true).run(|_rank| {
            let mut command = Command::new(&program);
            command.arg(&word);
            command
        })?),
    }
}
