//! `mpienv check`: all ranks run it to find out whether they can meet. Rank 0 prints the map of the job,
//! and what was measured.

use std::fs::{self, Metadata};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::command::check::measurement::{or_dash, table};
use crate::command::check::{self, CheckError, GpuTest, JobMap, Measures};
use crate::command::doctor::port;
use crate::command::protection::{ask_munged, no_answer};
use crate::{ClusterInfo, Finding, Interface, Severity};
use clap::Args;
use mpienv_ask::on_interface;
use mpienv_core::seam::{counted, ranges};
use serde_json::{Value, json};

use super::place::JointPlaceOptions;
use super::{Failure, Quiet, examples, lines_of, split_unit, stream, time, warn};

/// How long the other ranks wait before they report a failure. Launchers kill all ranks once one
/// has failed, and users look for the text of rank 0, which must print first.
const AFTER_RANK_0: Duration = Duration::from_millis(500);

/// Test whether all ranks can meet at the master, and name the missing ones
///
/// Start it as every rank of the job, with the same launcher and options as the program. Rank 0
/// prints the hosts and their ranks. If a rank is missing, arrives twice, disagrees or runs
/// another version, rank 0 names it, and the first rank of every other node refers to rank 0.
#[derive(Args, Debug)]
#[command(after_help = examples::CHECK)]
pub(super) struct Options {
    #[command(flatten)]
    place: JointPlaceOptions,
    /// How long to wait for all ranks, in seconds or as 90s or 10m
    ///
    /// A rank that has reached rank 0 waits up to ten seconds longer if rank 0 then stops
    /// answering. The time is that of the meeting: --mesh, --compute and --gpu take as long again
    /// or longer, above all where connections are blocked.
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = time)]
    timeout: Duration,
    /// The address of its host that rank 0 listens on; 0.0.0.0 or :: for every address
    ///
    /// Without this option rank 0 listens on the master's address if that is an address of its
    /// host, and otherwise on every address.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Also measure the network between every two hosts, and name the outliers
    ///
    /// One rank of each host takes part. Every two hosts connect in both directions on ports that
    /// the system chooses, and measure the round trip, the bandwidth in each direction and both at
    /// once. With more than 64 hosts, each host meets only a few others. A pair that cannot
    /// connect, a host or a pair with less than half of the median bandwidth or more than three
    /// times the median round trip, and a clock that is off by more than a second are findings, and
    /// the exit code is 3. `--interface` selects the network. Nothing listens afterward.
    #[arg(long)]
    mesh: bool,
    /// The most bytes that two hosts send each other in each direction in one measurement
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = bytes, requires = "mesh")]
    mesh_bytes: u64,
    /// Also measure how fast each rank computes and copies memory, all at once
    ///
    /// A rank with less than 70 % of the median is a finding: its node is throttled, or other
    /// programs use its cores.
    #[arg(long)]
    compute: bool,
    /// Also test each rank's GPU, by itself and with the others through NCCL
    ///
    /// Each rank takes the device of its local rank, or the only one that it sees, as programs do.
    /// It reports the device, the driver and NCCL's version, multiplies matrices and copies memory,
    /// and compares every number. Then NCCL sums over all ranks, from 8 bytes to --gpu-bytes, and
    /// over pairs of ranks. Ranks without a GPU, two ranks on one, other versions, wrong numbers,
    /// slow GPUs and pairs, and sockets in place of InfiniBand are findings, and the exit code is 3.
    /// It needs NVIDIA's driver and NCCL at run time, and a build with the feature `gpu`.
    #[arg(long)]
    gpu: bool,
    /// The most bytes that NCCL sums at once
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes, requires = "gpu")]
    gpu_bytes: u64,
    /// Write the hosts to blame to FILE, separated by commas
    ///
    /// The file is in the form of `srun --exclude`. It has the hosts that findings of --mesh,
    /// --compute and --gpu blame, and that of a rank that was lost during --mesh or --compute. If
    /// ranks are missing, it names the hosts of which none arrived, where the launcher lists the
    /// hosts and their ranks. It is empty if no host is to blame by itself, as of a pair that is
    /// slow or blocked only with each other, or if only rank 0's host arrived. Rank 0 writes it:
    /// remove that of an earlier run before the check, because it stays if rank 0 does not start.
    #[arg(long, value_name = "FILE")]
    bad_hosts: Option<PathBuf>,
    /// Print the map and all findings, or why the ranks did not meet, as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    quiet: Quiet,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let test_gpus = options.gpu.then(gpu_test).transpose()?;
    let info = options.place.read(options.quiet)?;
    let Some(file) = options.bad_hosts.as_deref().filter(|_| info.rank().is_first()) else {
        return check(&options, info, test_gpus, &mut Vec::new());
    };
    // The list of an earlier run must not seem to be that of this one. If the file cannot be
    // written, that is an error at the end, because the other ranks wait for this one.
    let _ = write_bad_hosts(file, "");
    let mut bad = Vec::new();
    let outcome = check(&options, info, test_gpus, &mut bad);
    let end = if bad.is_empty() { "" } else { "\n" };
    let written = write_bad_hosts(file, &(bad.join(",") + end));
    match (&written, &outcome) {
        (Err(failure), Err(_)) => stream::report(&failure.text()),
        (Ok(()), Err(_)) if bad.is_empty() => {
            let file = file.display();
            stream::report(&format!("mpienv: {file} is empty: check blames no single host\n"));
        }
        _ => {}
    }
    outcome.and(written)
}

/// Lets the ranks meet and measure. Rank 0 prints what it finds, and notes the hosts to blame.
fn check(
    options: &Options,
    info: ClusterInfo,
    test_gpus: Option<GpuTest>,
    bad: &mut Vec<String>,
) -> Result<(), Failure> {
    let &Options { timeout, bind, mesh, mesh_bytes, compute, json, quiet, .. } = options;
    let gpu = options.gpu.then_some(options.gpu_bytes);
    let measures = Measures { mesh: mesh.then_some(mesh_bytes), compute, gpu };
    // The program could not have an interface that the host does not have. For `auto`, names are
    // resolved, which the meeting reports better.
    let named = info.asked_interface().filter(|asked| asked.value != Interface::Auto).cloned();
    let info = if named.is_some() { on_interface(&info)? } else { info };
    if let Some(found) = refusal(&info, timeout) {
        let report = json.then(|| json!({ "missing": null, "findings": [&found] }));
        return Err(print_failure(report, Failure::refused("nothing was checked", found)));
    }
    // One rank meets no other rank, so that its meeting tries neither the port nor the address.
    let is_alone = info.world_size() == 1;
    let mut port = if is_alone { port::of_rank_0(&info) } else { None };
    port.iter_mut().for_each(|found| found.severity = Severity::Error);
    let warnings = warn::suspicious(&info, port);
    let said = quiet.print(&info, &warnings);
    let mut map = match check::meet(&info, timeout, bind, measures, None, "check") {
        Ok(map) => map,
        Err(error) => {
            let report = json!({ "missing": error.missing(), "findings": warnings });
            let report = Some(report).filter(|_| json && info.rank().is_first());
            bad.extend(error.absent_hosts(&info));
            let failure = failure(&info, error).unless_said(said.into_iter());
            return Err(print_failure(report, failure));
        }
    };
    if let Some(map) = map.as_ref().filter(|_| !json) {
        stream::print_styled(&lines_of_map(map, &info, mesh))?;
    }
    let fits = map.as_ref().is_none_or(|map| map.errors().next().is_none());
    if fits {
        let test_gpus = gpu.zip(test_gpus);
        if let Err(error) = measure(&info, timeout, bind, measures, test_gpus, &mut map) {
            bad.extend(error.absent_hosts(&info));
            let report = map.filter(|_| json).map(|map| json!(map.with_all_findings()));
            return Err(print_failure(report, failure(&info, error)));
        }
    }
    let Some(mut map) = map else { return Ok(()) };
    map.findings.extend(warnings.into_iter().filter(|_| is_alone));
    bad.extend(map.bad_hosts().into_iter().map(str::to_owned));
    let (summary, is_wrong) = (summary(&map), map.errors().next().is_some());
    if json {
        stream::print_json(&map.with_all_findings())?;
    } else {
        stream::print_styled(&measured(&map))?;
    }
    match summary {
        _ if !fits => Err(Failure::Disagreement),
        Some(summary) => Err(Failure::Measured(summary)),
        None if is_wrong => Err(Failure::Findings("check")),
        None => Ok(()),
    }
}

/// Replaces the file of `--bad-hosts`. In a shared folder, another user could have made a link that
/// leads to a file of this user.
fn write_bad_hosts(file: &Path, text: &str) -> Result<(), Failure> {
    let link = fs::symlink_metadata(file).ok().filter(Metadata::is_symlink);
    let own = [0, rustix::process::geteuid().as_raw()];
    let written = match link.filter(|link| !own.contains(&link.uid())) {
        Some(_) => Err(io::Error::other("it is a symbolic link of another user")),
        None => fs::write(file, text),
    };
    written.map_err(|error| Failure::BadHosts { file: file.to_owned(), error })
}

/// Measures what the ranks agreed on, and adds the results to the map that rank 0 has.
fn measure(
    info: &ClusterInfo,
    timeout: Duration,
    bind: Option<IpAddr>,
    measures: Measures,
    test_gpus: Option<(u64, GpuTest)>,
    map: &mut Option<JobMap>,
) -> Result<(), CheckError> {
    if measures.mesh.is_some() || measures.compute {
        check::measure(info, timeout, bind, measures, map.as_mut())?;
    }
    if let Some((most, test)) = test_gpus {
        let tested = test(info, timeout, most)?;
        map.iter_mut().for_each(|map| map.gpu = Some(tested.clone()));
    }
    Ok(())
}

/// Prints what rank 0 knows as an object that names the error, and returns the failure of this
/// process.
fn print_failure(report: Option<Value>, failure: Failure) -> Failure {
    let Some(mut report) = report else { return failure };
    report["error"] = json!(failure.to_string());
    stream::print_json(&report).err().map_or(failure, Failure::from)
}

/// Returns why this process, which would meet only itself, is probably one of several.
pub(super) fn only_itself(info: &ClusterInfo) -> Option<&Finding> {
    info.one_of_several().filter(|_| info.world_size() == 1)
}

/// Returns why this process's meeting would not show that the job's ranks can meet.
fn refusal(info: &ClusterInfo, timeout: Duration) -> Option<Finding> {
    only_itself(info).cloned().or_else(|| {
        // A rank by itself meets no other, so that its meeting does without MUNGE.
        let munged = if info.world_size() == 1 { ask_munged(info, timeout) } else { None };
        no_answer(info, munged.as_ref()).filter(|own| own.severity == Severity::Error)
    })
}

/// Asks NCCL to tell what it does, before there are other threads.
#[expect(unsafe_code, reason = "NCCL reads it from the environment")]
fn gpu_test() -> Result<GpuTest, Failure> {
    let prepare = check::GPU_TEST.ok_or(Failure::NoGpu)?;
    // SAFETY: the command has only this thread yet, and nothing has loaded NCCL.
    Ok(unsafe { prepare() })
}

/// Parses a number of bytes, with a suffix for thousands, millions or billions.
fn bytes(text: &str) -> Result<u64, &'static str> {
    let units = [("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let (digits, unit) = split_unit(text, &units).unwrap_or((text, 1));
    let bytes = digits.parse().ok().and_then(|count: u64| count.checked_mul(unit));
    bytes.filter(|&bytes| bytes > 0).ok_or("expected a number of bytes above 0, such as 100M or 2G")
}

/// Returns this rank's failure if the ranks did not meet. What rank 0 prints, the others do not
/// repeat.
pub(super) fn failure(info: &ClusterInfo, error: CheckError) -> Failure {
    match info.master_addr() {
        Ok(master) if error.is_of_rank_0() && !info.rank().is_first() => {
            thread::sleep(AFTER_RANK_0);
            Failure::OfRank0 {
                master: master.with_port(info.meeting_port()),
                kind: error.kind(),
                // As with warnings, the first rank of a node speaks for all.
                is_silent: info.local_rank().is_some_and(|local| local > 0),
            }
        }
        _ => error.into(),
    }
}

/// Returns who met, where, and what does not fit together.
fn lines_of_map(map: &JobMap, info: &ClusterInfo, tests_all: bool) -> String {
    let hosts = map.hosts();
    let (ranks, on) = (counted(map.ranks.len(), "rank"), counted(hosts.len(), "host"));
    let launcher = info.launcher().title();
    let met = match map.ranks.len() {
        1 => ": it has no other rank to meet".to_owned(),
        _ => {
            format!(", met at {} in {:.2} s, {}", map.master, map.seconds, map.protection.phrase())
        }
    };
    let mut text = format!("{ranks} on {on}, started by {launcher}{met}\n");
    let mut rows = vec![["host", "address", "ranks", "local ranks"].map(str::to_owned).to_vec()];
    for (host, ranks) in &hosts {
        let numbers: Vec<_> = ranks.iter().map(|(rank, _)| *rank).collect();
        let address = ranks.first().and_then(|(_, report)| Some(report.address?.to_string()));
        let local: Option<Vec<_>> = ranks.iter().map(|(_, report)| report.local_rank).collect();
        let local = or_dash(local.map(|local| ranges(&local)));
        rows.push(vec![(*host).to_owned(), address.unwrap_or_default(), ranges(&numbers), local]);
    }
    text += &table(&rows, false);
    if let Some(line) = listened(map, info) {
        text += &format!("{line}\n");
    }
    if let Some(reason) = &map.no_munge {
        text += &format!("the ranks did not use MUNGE: {reason}\n");
    }
    if map.simulated {
        text += "the job is simulated on this host: hosts and local ranks are not compared\n";
    }
    if hosts.len() > 1 && !tests_all {
        text += "only the master's port was tested: --mesh tests other ports, between all hosts\n";
    }
    let gap = if map.findings.is_empty() { "" } else { "\n" };
    text + gap + &lines_of(&map.findings)
}

/// Returns where rank 0 listened, if the first line does not show it.
fn listened(map: &JobMap, info: &ClusterInfo) -> Option<String> {
    let master = info.master_addr().ok()?;
    let [address, ..] = map.listened[..] else { return None };
    if address.is_unspecified() {
        return Some(
            "rank 0 listened on every address of its host: --bind ADDRESS makes it listen on one"
                .to_owned(),
        );
    }
    let is_plain =
        master.is_loopback() || master.address().is_some_and(|master| map.listened == [master]);
    let list: Vec<_> = map.listened.iter().map(IpAddr::to_string).collect();
    (!is_plain).then(|| format!("rank 0 listened on {}", list.join(" and ")))
}

/// Returns what was measured, which ends with the findings.
fn measured(map: &JobMap) -> String {
    let text: String = map.measurements().map(|own| &*own.text).collect();
    let findings = lines_of(map.measured_findings());
    let gap = if findings.is_empty() { "" } else { "\n" };
    text + gap + &findings
}

/// The codes of findings, the worst first, and what they say in a few words. The last but one stands
/// for all other codes.
const SUMMARIES: [(&[&str], &str); 7] = [
    (&["mesh-host-blocked", "mesh-pair-blocked"], "some hosts cannot connect to each other"),
    (&["mesh-pair-broken"], "some hosts do not receive what others send"),
    (
        &["gpu-missing", "nccl-missing", "gpu-shared", "nccl-versions-differ"],
        "their GPUs or libraries do not let NCCL connect them",
    ),
    (&["gpu-failed", "gpu-wrong"], "some GPUs do not compute what they should"),
    (&["nccl-failed", "nccl-wrong"], "NCCL does not sum over all of them"),
    (&[], "not all hosts or ranks are as fast as the others"),
    (&["mesh-clock"], "the clocks of some hosts differ"),
];

/// Returns what stands out in a few words, the worst first. `None` if nothing does.
fn summary(map: &JobMap) -> Option<&'static str> {
    let findings = map.measured_findings().filter(|found| found.severity > Severity::Note);
    let place = |found: &Finding| {
        let of_code = SUMMARIES.iter().position(|(codes, _)| codes.contains(&found.code));
        of_code.unwrap_or(SUMMARIES.len() - 2)
    };
    Some(SUMMARIES[findings.map(place).min()?].1)
}
