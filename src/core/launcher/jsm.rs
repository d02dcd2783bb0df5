//! IBM's Job Step Manager: `jsrun` under LSF.

use crate::launcher::prelude::*;

variables! {
    /// The variables that jsrun and LSF set for every process.
    pub struct JsmVars {
        "[IBM: JSM environment variables](https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=SSWRJV_10.1.0/jsm/10.3/base/jsm_kickoff.htm)" {
            RANK = "JSM_NAMESPACE_RANK" => rank: u32, "rank";
            SIZE = "JSM_NAMESPACE_SIZE" => size: u32, "world size";
            LOCAL_RANK = "JSM_NAMESPACE_LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "JSM_NAMESPACE_LOCAL_SIZE" => local_size: Option<u32>, "ranks on this node";
        }
        "[IBM: LSF environment variables](https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-variable-reference)" {
            HOSTS = "LSB_MCPU_HOSTS" => hosts: Option<String>, "`launch 1 node1 42 node2 42`: hosts and slots, the launch node first";
            JOB_ID = "LSB_JOBID" => job: Option<String>, "the job's number";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[JsmVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::Processes,
    start: "start the process with jsrun",
    programs: Some(Programs { names: "jsrun", verbs: "", options: "-n 2" }),
    one_per_node: "`jsrun --rs_per_host 1 --tasks_per_rs 1`",
    unbind: Some("jsrun --bind none"),
    mpi: MpiFamily::Spectrum,
    local: &[LOCAL_RANK, LOCAL_SIZE],
    outside: &[HOSTS, JOB_ID],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
        let nodes = (0..).zip(process.counts);
        let hosts: String =
            nodes.map(|(node, count)| format!(" {} {count}", process.name(node))).collect();
        vars.set(HOSTS, format!("batch0 1{hosts}"));
        vars.set(JOB_ID, 4711);
    })],
    ..LauncherSpec::plain(read)
};

/// Returns whether Open MPI's variables are those that Spectrum MPI's jsrun sets too: both give the
/// same place.
pub(super) fn sets_those_of_open_mpi(environment: &Environment) -> bool {
    let names = [RANK, SIZE, LOCAL_RANK].map(|name| (name, environment.text(name)));
    names.into_iter().all(|(name, number)| {
        let of_open_mpi = name.replace("JSM_NAMESPACE", "OMPI_COMM_WORLD");
        number.is_some() && environment.text(&of_open_mpi) == number
    })
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: JsmVars = marker.read()?;
    let mut placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size))?;
    // `launch 1 node1 42 ...`: no rank runs on the first host, which has one slot.
    let hosts: Vec<_> =
        vars.hosts.iter().flat_map(|hosts| hosts.split_ascii_whitespace()).collect();
    if let [_, "1", name, ..] = hosts[..] {
        let source = format!("{HOSTS}: the first host after the launch node");
        placement.master_addr = Some(Sourced::new(marker.launcher.host(HOSTS, name)?, source));
    }
    Ok(placement.with_job(JOB_ID, vars.job))
}
