//! How many workers `launch` starts on this node.

use std::ffi::OsStr;

use crate::{ClusterInfo, Environment, Error, Finding, Reason};
use mpienv_core::seam::{Shown, Sourced, shown};
use mpienv_launch::seam::{cores_of_children, topology};

/// The value of `--nproc-per-node`, in torchrun's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCount {
    Fixed(u32),
    /// The platform's number, else one for each device, else one for each core.
    Auto,
    /// One for each device.
    Gpu,
    /// One for each core.
    Cpu,
}

impl WorkerCount {
    /// Parses the option's value for clap.
    pub(super) fn parse(text: &str) -> Result<WorkerCount, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(WorkerCount::Auto),
            ("gpu", _) => Ok(WorkerCount::Gpu),
            ("cpu", _) => Ok(WorkerCount::Cpu),
            (_, Ok(number)) if (1..=ClusterInfo::MOST_WORKERS).contains(&number) => {
                Ok(WorkerCount::Fixed(number))
            }
            _ => Err(format!(
                "expected a whole number from 1 to {}, or auto, gpu or cpu",
                ClusterInfo::MOST_WORKERS
            )),
        }
    }

    /// Returns whether each node counts for itself by this word, so that two nodes may differ.
    pub(super) fn is_counted(self, platform: Option<&Sourced<String>>) -> bool {
        let number = |said: &Sourced<String>| said.value.parse().ok().filter(|own: &u32| *own > 0);
        self != WorkerCount::Auto || platform.and_then(number).is_none()
    }

    /// Returns the number of workers and its source.
    pub(super) fn resolve(
        self,
        platform: Option<&Sourced<String>>,
        node: &Node<'_>,
    ) -> Result<(u32, String), Error> {
        match self {
            WorkerCount::Fixed(number) => Ok((number, "--nproc-per-node".to_owned())),
            WorkerCount::Auto => match platform {
                Some(Sourced { value, source }) => of_platform(value, source, node),
                None => Ok(node
                    .devices()
                    .unwrap_or_else(|| node.cores(", because no device is visible"))),
            },
            WorkerCount::Gpu => node.devices().ok_or_else(|| {
                let reason = Reason::Malformed("this node shows no device".to_owned());
                let remedy = "check the driver, and pass the devices on (srun --gres, docker --gpus \
                              all, podman --device, apptainer --nv), or give the number, as in \
                              --nproc-per-node 8";
                Error::new(reason, remedy).of("--nproc-per-node").found("gpu")
            }),
            WorkerCount::Cpu => Ok(node.cores("")),
        }
    }
}

/// Resolves a platform's variable, which holds a number (0 without a GPU) or one of torchrun's
/// words.
fn of_platform(value: &str, variable: &str, node: &Node<'_>) -> Result<(u32, String), Error> {
    match WorkerCount::parse(value) {
        Ok(WorkerCount::Fixed(number)) => {
            // `WORLD_SIZE` is the number of all workers.
            let set = node.environment.get(variable).map_or(value.into(), OsStr::to_string_lossy);
            Ok((number, format!("{variable}={set}")))
        }
        Ok(word) => word.resolve(None, node),
        Err(_) if value == "0" => WorkerCount::Auto.resolve(None, node),
        Err(_) => {
            let remedy =
                format!("correct {variable}, or give the number, as in --nproc-per-node 8");
            Err(Error::new(Reason::NotANumber, remedy).of(variable.to_owned()).found(value))
        }
    }
}

/// Reports another number of ranks on this node than a template asks torchrun for. A platform's
/// number of GPUs does not count, because one process may use them all.
pub(super) fn differs(info: &ClusterInfo, by: &str, started: u32) -> Option<Finding> {
    let Sourced { value, source } = info.workers_of_platform()?;
    let asked: u32 = value.parse().ok().filter(|_| [PER_NODE, WORLD_SIZE].contains(&&**source))?;
    let is_other = asked > 0 && asked != started && info.check_per_node().is_ok();
    let all = |per_node: u32| u64::from(info.world_size()) * u64::from(per_node);
    let [set, right] = [asked, started].map(|per_node| match source.as_ref() {
        WORLD_SIZE => all(per_node),
        _ => u64::from(per_node),
    });
    Some(Finding::warning(
        "workers-differ",
        format!("{source}={set} asks for {asked} ranks on each node, and {by} starts {started}"),
        format!("the job has {} ranks in place of {}", all(started), all(asked)),
        format!(
            "start them with `mpienv launch --nproc-per-node {asked}`, or set {source} to {right}"
        ),
    ))
    .filter(|_| is_other)
}

/// How many workers a template of Kubeflow's asks each node's torchrun for.
const PER_NODE: &str = "PET_NPROC_PER_NODE";
/// Where the number of nodes is set too, how many workers a template has in all.
const WORLD_SIZE: &str = "WORLD_SIZE";

/// This node's resources for workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    /// The variables, of which some select devices.
    environment: &'a Environment,
    /// The number of devices in `/dev`, and the pattern of their names.
    devices: (u32, &'static str),
    /// Cores that the workers may use.
    cores: u32,
}

impl<'a> Node<'a> {
    /// Inspects this node. Workers that drop their binding may use more cores than this process.
    pub(super) fn here(keep_binding: bool, environment: &'a Environment) -> Node<'a> {
        let devices = topology(environment).devices.files.unwrap_or_default();
        Node { environment, devices, cores: cores_of_children(keep_binding).hardware_threads() }
    }

    /// Returns the number of devices and its source, or `None` if there are none or all are hidden.
    fn devices(&self) -> Option<(u32, String)> {
        let (count, source) = match shown(self.environment).next() {
            Some(Shown { variable, value, count }) => {
                (u32::try_from(count.unwrap_or(0)).ok()?, format!("{variable}={value}"))
            }
            None => (self.devices.0, format!("one for each device, {}", self.devices.1)),
        };
        (count > 0).then_some((count, source))
    }

    fn cores(&self, reason: &str) -> (u32, String) {
        (self.cores, format!("one for each core that they may use{reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPUS: (u32, &str) = (4, "/dev/nvidia*");
    const NONE: (u32, &str) = (0, "");

    fn auto(
        platform: Option<&str>,
        vars: &[(&str, &str)],
        devices: (u32, &'static str),
    ) -> Result<(u32, String), Error> {
        let platform = platform.map(|value| Sourced::new(value.to_owned(), "NUM_GPUS"));
        let environment = &Environment::from_vars(vars.iter().copied());
        WorkerCount::Auto.resolve(platform.as_ref(), &Node { environment, devices, cores: 64 })
    }

    #[test]
    fn the_platforms_number_goes_before_the_visible_devices_and_these_before_the_cores() {
        let cores = "one for each core that they may use, because no device is visible";
        let hidden = [("CUDA_VISIBLE_DEVICES", "")];
        let two = [("CUDA_VISIBLE_DEVICES", "2,3")];
        let rocm = [("ROCR_VISIBLE_DEVICES", "0")];
        let tiles = [("ZE_AFFINITY_MASK", "0.0,0.1,2.0")];
        let ascend = [("ASCEND_RT_VISIBLE_DEVICES", "0,1,2")];
        for (platform, vars, devices, expected) in [
            (Some("8"), &two[..], GPUS, (8, "NUM_GPUS=8")),
            (Some("0"), &two, GPUS, (2, "CUDA_VISIBLE_DEVICES=2,3")),
            (Some("0"), &[], NONE, (64, cores)),
            (Some("auto"), &[], GPUS, (4, "one for each device, /dev/nvidia*")),
            (Some("gpu"), &[], GPUS, (4, "one for each device, /dev/nvidia*")),
            (Some("cpu"), &[], GPUS, (64, "one for each core that they may use")),
            (None, &two, GPUS, (2, "CUDA_VISIBLE_DEVICES=2,3")),
            (None, &rocm, GPUS, (1, "ROCR_VISIBLE_DEVICES=0")),
            (None, &ascend, NONE, (3, "ASCEND_RT_VISIBLE_DEVICES=0,1,2")),
            (None, &tiles, NONE, (3, "ZE_AFFINITY_MASK=0.0,0.1,2.0")),
            (None, &[], GPUS, (4, "one for each device, /dev/nvidia*")),
            (None, &hidden, GPUS, (64, cores)),
            (None, &[], NONE, (64, cores)),
        ] {
            let (number, source) = auto(platform, vars, devices).unwrap();
            assert_eq!((number, source.as_str()), expected, "{platform:?} {vars:?}");
        }
    }

    #[test]
    fn a_platforms_number_that_is_not_one_is_an_error_with_its_variable() {
        for bad in ["eight", "0.5", "-1", "70000"] {
            let error = auto(Some(bad), &[], NONE).unwrap_err();
            assert_eq!((error.variable(), error.value()), (Some("NUM_GPUS"), Some(bad)));
        }
        let node = Node { environment: &Environment::default(), devices: NONE, cores: 64 };
        let error = WorkerCount::Gpu.resolve(None, &node).unwrap_err().to_string();
        assert!(error.contains("shows no device"), "{error}");
    }
}
