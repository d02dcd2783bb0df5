//! What the variables show besides this process's place.

use super::Place;
use crate::cluster::interface::{Interface, OwnAddr, OwnInterface};
use crate::cluster::overrides::{Overrides, RESTART_COUNT};
use crate::cluster::{device, nccl};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::placement::Placement;
use crate::launcher::{Launcher, Starts, is_shared, kubernetes, markers, restarts};
use crate::value::sourced::{NOT_PROVIDED, Sourced, value_of};

/// What surrounds a rank: its device and network, the platform, and the job's earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub nccl: nccl::Selected,
    pub device_index: Sourced<Option<u32>>,
    pub restart_count: Sourced<Option<u32>>,
    pub platform: Sourced<Option<Launcher>>,
    /// The network interface that was asked for.
    pub asked_interface: Option<Sourced<Interface>>,
    /// The one that was found.
    pub interface: Option<OwnInterface>,
    /// This host's own address, or why it has none, once it was asked for.
    pub own_addr: Option<Result<OwnAddr, Error>>,
}

impl Surroundings {
    pub(super) fn read(place: &Place<'_>, overrides: Overrides) -> Result<Surroundings, Error> {
        let Place { whole, environment, placement, azure, .. } = place;
        Ok(Surroundings {
            nccl: nccl::ifname(environment, azure.is_some(), overrides.nccl_ifname)?,
            device_index: device::index(whole, value_of(&placement.local_rank)),
            restart_count: restart_count(whole, placement.launcher())?,
            platform: platform(whole, placement),
            asked_interface: overrides.interface,
            interface: None,
            own_addr: None,
        })
    }
}

/// Returns the platform that started a process on this node: the launcher itself, or a platform
/// around it.
fn platform(environment: &Environment, placement: &Placement) -> Sourced<Option<Launcher>> {
    let is_platform = |launcher: Launcher| launcher.spec().starts == Starts::OnePerNode;
    if is_platform(placement.launcher()) {
        return Sourced::new(Some(placement.launcher()), placement.launcher.source.clone());
    }
    let mut markers = markers(environment).filter(|marker| is_platform(marker.launcher));
    let around = markers.find_map(|marker| {
        let node = (marker.launcher.spec().read)(environment, marker).ok()?;
        // Users set some of these variables by hand, and `exec --per-node` sets torchrun's own.
        let is_pod = environment.is_set(kubernetes::SERVICE);
        let is_sure = !is_shared(marker.variable)
            && value_of(&node.local_size) == Some(1)
            && (is_pod || marker.launcher != Launcher::Kubernetes);
        let source = || marker.display_variable(environment);
        is_sure.then(|| Sourced::new(Some(marker.launcher), source()))
    });
    around.unwrap_or(Sourced::new(None, NOT_PROVIDED))
}

/// Returns how often the job was restarted, from the launcher's own variable or a surrounding
/// launcher's.
fn restart_count(
    environment: &Environment,
    launcher: Launcher,
) -> Result<Sourced<Option<u32>>, Error> {
    let read = |variable: &'static str| -> Result<Option<Sourced<Option<u32>>>, Error> {
        let Some(text) = environment.setting_text(variable)? else { return Ok(None) };
        let refused = |_| launcher.refuse(Reason::NotANumber, variable, text);
        Ok(Some(Sourced::new(Some(text.parse().map_err(refused)?), variable)))
    };
    for variable in restarts(launcher).into_iter().chain([RESTART_COUNT]) {
        if let Some(count) = read(variable)? {
            return Ok(count);
        }
    }
    // An unreadable variable of another launcher is not a reason to fail.
    let of_others = Launcher::ALL.iter().filter_map(|&other| restarts(other));
    let mut counts = of_others.filter_map(|variable| read(variable).ok()?);
    Ok(counts.next().unwrap_or(Sourced::new(None, NOT_PROVIDED)))
}
