//! What the checks inspect on this host, gathered once.

use std::fs;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::mpi_library::MpiLibrary;
use crate::{ClusterInfo, Environment, Host, Launcher, host_name};
use mpienv_ask::seam::{self, interfaces};
use mpienv_core::seam::{SIMULATED, ancestors_in_job};
use mpienv_launch::seam::{Cpus, Topology, allowed_cpus, count_cores, topology, usable_cpus};
use mpienv_rendezvous::seam::listen::{PortState, state_of};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// What the checks inspect besides the environment.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The master's addresses as this host resolves them, or why it cannot. Empty if no master is
    /// known.
    pub master: Result<Vec<IpAddr>, String>,
    /// This host's interfaces: name and address, one entry for each address.
    pub interfaces: Vec<(String, IpAddr)>,
    /// The state of the master's port. Always free on ranks other than 0, which do not check.
    pub port: PortState,
    /// The ports that the system uses for outgoing connections, if known.
    pub ephemeral_ports: Option<RangeInclusive<u16>>,
    /// This host's name, and the addresses to which it resolves here.
    pub own_name: (String, Vec<IpAddr>),
    /// How many cores this process may use, and how many it could use without its binding.
    pub cores: Option<(usize, usize)>,
    /// The host's cores, NUMA nodes and GPUs.
    pub topology: Topology,
    /// The CPUs that this process may use. Empty if they are not known.
    pub cpus: Cpus,
    /// The CPUs that it could use without its binding. Empty if they are not known.
    pub usable: Cpus,
    /// The MPI library that programs find. `None` without the feature `mpi`, and unless a launcher
    /// of MPI programs started several ranks.
    pub mpi: Option<MpiLibrary>,
    /// The variable of Open MPI that names the folder of a job that has ended, and that folder.
    pub gone_session: Option<(&'static str, PathBuf)>,
    /// The process of the Slurm task whose variables are set, if it no longer runs.
    pub ended_task: Option<u32>,
    /// What shows that the launcher of this place has ended.
    pub ended_launcher: Option<String>,
}

impl Machine {
    /// Inspects this host as it is now. Each name may take up to `patience` to resolve.
    #[must_use]
    pub fn here(info: &ClusterInfo, patience: Duration) -> Machine {
        let environment = info.environment();
        let name = host_name().unwrap_or_default();
        let own = resolve(name.clone(), patience).unwrap_or_default();
        Machine {
            master: info.master_addr().map_or(Ok(Vec::new()), |host| addresses(host, patience)),
            interfaces: interfaces(),
            port: port(info),
            ephemeral_ports: ephemeral_ports(),
            own_name: (name, own),
            cores: count_cores(),
            topology: topology(environment),
            cpus: allowed_cpus().unwrap_or_default(),
            usable: usable_cpus().unwrap_or_default(),
            mpi: MpiLibrary::here(info),
            gone_session: gone_session(environment),
            ended_task: ended_task(environment),
            ended_launcher: ended_launcher(info),
        }
    }
}

pub(crate) fn addresses(host: &Host, patience: Duration) -> Result<Vec<IpAddr>, String> {
    match host.address() {
        Some(address) => Ok(vec![address.to_canonical()]),
        None => resolve(host.to_string(), patience),
    }
}

fn resolve(name: String, patience: Duration) -> Result<Vec<IpAddr>, String> {
    let found = seam::resolve(name, 0, patience)?;
    Ok(found.into_iter().map(|address| address.ip().to_canonical()).collect())
}

/// Returns the state of the master's port for rank 0 of any program that listens on every address.
/// Other ranks do not try.
pub(super) fn port(info: &ClusterInfo) -> PortState {
    if info.rank().is_first() { state_of(info.master_port()) } else { PortState::Free }
}

/// Returns the variable that names the folder of a job of Open MPI, and the folder, if it does not
/// exist: Open MPI removes it when the job ends.
pub(crate) fn gone_session(environment: &Environment) -> Option<(&'static str, PathBuf)> {
    let variables = ["OMPI_MCA_orte_jobfam_session_dir", "PMIX_SERVER_TMPDIR"];
    let named = |name| Some((name, PathBuf::from(environment.get(name)?)));
    let session = variables.into_iter().find_map(named)?;
    (environment.is_set("OMPI_COMM_WORLD_RANK") && !session.1.is_dir()).then_some(session)
}

/// The namespace of process IDs in which Linux starts: `PROC_PID_INIT_INO`.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Returns the process of the Slurm task whose variables are set, if it no longer runs: it is an
/// ancestor of every process of the task. Another process may have its ID by now. `None` in a
/// container with process IDs of its own.
pub(crate) fn ended_task(environment: &Environment) -> Option<u32> {
    let id: u32 = environment.get("SLURM_TASK_PID")?.to_str()?.parse().ok()?;
    let folder = PathBuf::from(format!("/proc/{id}"));
    let is_the_same = |theirs: &[u8], name: &str| {
        environment.get(name).is_none_or(|value| {
            let own = [name.as_bytes(), b"=", value.as_encoded_bytes()].concat();
            theirs.split(|byte| *byte == 0).any(|variable| variable == own)
        })
    };
    // That of another user's process cannot be read. A program between srun and this process may
    // have cleared its own, as Apptainer does.
    let is_of_another_task = || {
        let names = ["SLURM_JOB_ID", "SLURM_STEP_ID"];
        fs::read(folder.join("environ"))
            .is_ok_and(|theirs| !names.iter().all(|name| is_the_same(&theirs, name)))
            && !ancestors_in_job().contains(&id)
    };
    let has_ended = !folder.exists() || is_of_another_task();
    (environment.is_set("SLURM_PROCID") && has_ended && is_in_first_namespace()).then_some(id)
}

/// Returns what shows that the Hydra or the `mpienv launch` that gave this place has ended: both end
/// what they have started. `None` in a container with process IDs of its own, and if the launcher
/// is only simulated.
pub(crate) fn ended_launcher(info: &ClusterInfo) -> Option<String> {
    let environment = info.environment();
    let what = match info.launcher() {
        Launcher::Hydra => {
            let fd: u32 = environment.get("PMI_FD")?.to_str()?.parse().ok()?;
            let open = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
            let is_open = open.to_string_lossy().starts_with("socket:");
            (!is_open && info.starter().is_none()).then(|| {
                format!(
                    "PMI_FD is {fd}, which is not a socket here, and no parent process is Hydra's"
                )
            })
        }
        Launcher::User => {
            let id =
                |name: &str| name.strip_prefix("MPIENV_LAUNCH_")?.split('_').next()?.parse().ok();
            // The end of an outer one would have ended the inner one.
            let has_ended = |id: &Pid| test_kill_process(*id) == Err(Errno::SRCH);
            let mut launches = environment.names().filter_map(id).filter_map(Pid::from_raw);
            launches.find(has_ended).map(Pid::as_raw_pid).map(|id| {
                format!("`mpienv launch` was process {id}, and this host has no process {id}")
            })
        }
        _ => None,
    };
    what.filter(|_| is_in_first_namespace() && !environment.is_set(SIMULATED))
}

fn is_in_first_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(FIRST_NAMESPACE))
}

fn ephemeral_ports() -> Option<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u16>().ok());
    Some(numbers.next()??..=numbers.next()??)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn state_for(rank: &str, number: u16) -> PortState {
        let number = number.to_string();
        let vars = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.4"),
            ("MASTER_PORT", number.as_str()),
        ];
        port(&ClusterInfo::from_vars(vars).unwrap())
    }

    #[test]
    fn a_port_is_taken_on_whatever_address_somebody_listens() {
        for address in ["0.0.0.0", "127.0.0.1", "::", "::1"] {
            // Without IPv6 there is nothing to listen on.
            let Ok(listener) = TcpListener::bind((address, 0)) else { continue };
            let port = listener.local_addr().unwrap().port();
            assert_eq!(state_for("0", port), PortState::InUse, "{address}");
            drop(listener);
            assert_eq!(state_for("0", port), PortState::Free, "{address}");
        }
    }

    /// Two ranks that try at the same moment would each find the other.
    #[test]
    fn rank_0_alone_tries_the_port() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(state_for("1", port), PortState::Free);
    }

    #[test]
    fn a_session_is_gone_if_a_rank_names_a_folder_that_is() {
        let gone = |name, folder: &str, rank| {
            gone_session(&Environment::from_vars([(name, folder), (rank, "0")]))
        };
        let (rank, folder) = ("OMPI_COMM_WORLD_RANK", "/no/such/session");
        for name in ["OMPI_MCA_orte_jobfam_session_dir", "PMIX_SERVER_TMPDIR"] {
            assert_eq!(gone(name, folder, rank), Some((name, folder.into())));
            assert_eq!(gone(name, "/", rank), None);
            assert_eq!(gone(name, folder, "PMIX_RANK"), None);
        }
    }

    #[test]
    fn link_local_addresses_are_this_hosts_too() {
        let own = interfaces();
        // One line for each IPv6 address: 32 digits, then other properties.
        let listed = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for digits in listed.lines().filter_map(|line| line.split_ascii_whitespace().next()) {
            let address = IpAddr::from(u128::from_str_radix(digits, 16).unwrap().to_be_bytes());
            assert!(own.iter().any(|(_, own)| *own == address), "{address}");
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_shown_as_ipv4() {
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(addresses(&mapped, Duration::ZERO), Ok(vec!["127.0.0.1".parse().unwrap()]));
    }

    #[test]
    fn a_task_has_ended_if_its_process_is_gone() {
        let task = |id: u32| {
            let id = id.to_string();
            ended_task(&Environment::from_vars([("SLURM_PROCID", "0"), ("SLURM_TASK_PID", &id)]))
        };
        assert_eq!(task(std::process::id()), None);
        // In a container, the number may be that of a process outside of it.
        let is_container =
            fs::read_link("/proc/self/ns/pid").unwrap() != Path::new(FIRST_NAMESPACE);
        assert_eq!(task(u32::MAX), (!is_container).then_some(u32::MAX));
    }

    #[test]
    fn a_task_has_ended_if_a_process_of_another_task_or_of_none_has_its_number() {
        let task = |id: u32| {
            let id = id.to_string();
            ended_task(&Environment::from_vars([
                ("SLURM_PROCID", "0"),
                ("SLURM_TASK_PID", &id),
                ("SLURM_JOB_ID", "42"),
                ("SLURM_STEP_ID", "7"),
            ]))
        };
        let is_container =
            fs::read_link("/proc/self/ns/pid").unwrap() != Path::new(FIRST_NAMESPACE);
        for vars in ["SLURM_JOB_ID=42 SLURM_STEP_ID=7", "SLURM_JOB_ID=42 SLURM_STEP_ID=8", ""] {
            let mut sleep = std::process::Command::new("sleep");
            let vars = vars.split(' ').filter_map(|var| var.split_once('='));
            let is_ended = vars.clone().all(|(_, value)| value != "7") && !is_container;
            let mut process = sleep.arg("3000").env_clear().envs(vars).spawn().unwrap();
            let found = task(process.id());
            process.kill().unwrap();
            process.wait().unwrap();
            assert_eq!(found, is_ended.then_some(process.id()));
        }
        // A program between srun and this process may have cleared its environment.
        assert_eq!(task(std::os::unix::process::parent_id()), None);
    }
}
