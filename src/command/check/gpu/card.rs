//! placeholder
use super::{Alone, DeviceReport, Problem};
use crate::ClusterInfo;
use crate::collective::Group;
use std::fs;
use std::path::Path;

pub(super) struct Card {
    pub(super) report: DeviceReport,
}
pub(super) struct Joined<'a> {
    card: &'a Card,
}
fn none() -> Problem {
    Problem { what: "no".into(), remedy: "none".into() }
}
impl Card {
    pub(super) fn open(_: &ClusterInfo) -> Result<Card, Problem> {
        Err(none())
    }
    pub(super) fn alone(&self) -> Result<Alone, Problem> {
        Err(none())
    }
    pub(super) fn join(&self, _: &mut Group) -> Result<Joined<'_>, Problem> {
        Ok(Joined { card: self })
    }
}
impl Joined<'_> {
    pub(super) fn sum(&mut self, _: &[f32]) -> Result<Vec<f32>, Problem> {
        let _ = &self.card;
        Err(none())
    }
    pub(super) fn time(&mut self, _: usize) -> Result<f64, Problem> {
        Err(none())
    }
}
pub(super) fn nccl_version() -> Result<String, Problem> {
    Err(none())
}

/// Returns the ports of this host's InfiniBand and RoCE adapters that are active.
pub(super) fn infiniband() -> Vec<String> {
    active_ports(Path::new("/sys/class/infiniband"))
}

fn active_ports(adapters: &Path) -> Vec<String> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let mut ports = Vec::new();
    for adapter in names(adapters) {
        let folder = adapters.join(&adapter).join("ports");
        for port in names(&folder) {
            let state = fs::read_to_string(folder.join(&port).join("state")).unwrap_or_default();
            if state.trim().ends_with("ACTIVE") {
                ports.push(format!("{adapter}:{port}"));
            }
        }
    }
    ports.sort();
    ports
}
