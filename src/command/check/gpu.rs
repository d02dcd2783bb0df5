//! Tests each rank's GPU: what it is, alone with numbers that are checked, and together with the
//! others through NCCL.
//!
//! All ranks go through the same steps. After each step they exchange what they have seen, so that
//! all come to the same findings, and none waits for NCCL where it must fail.

mod card;
mod findings;
mod log;
mod nccl;
mod report;

use std::path::Path;
use std::time::Duration;

use mpienv_gpu::GpuError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::card::Card;
use self::findings::{Findings, shares};
use self::log::Log;
use self::report::RankGpu;
use super::{CheckError, GpuTest, Measurement, OpenFiles, SIMULATED};
use crate::collective::{Backend, CollectiveError, Group};
use crate::{ClusterInfo, host_name, printable};

/// How long a rank may take for one step.
const STEP: Duration = Duration::from_secs(120);

/// What a rank knows of its GPU before it uses it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CardReport {
    host: String,
    device: Result<DeviceReport, GpuError>,
    /// The version of NCCL.
    nccl: Result<String, GpuError>,
    /// By which name NCCL knows the host, if a user has chosen one.
    nccl_host_id: Option<String>,
    /// The active ports of InfiniBand and RoCE, such as `mlx5_0:1`.
    infiniband: Vec<String>,
}

/// A rank's device, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DeviceReport {
    /// Its number among those that the rank sees.
    pub ordinal: u32,
    pub name: String,
    pub uuid: String,
    pub pci_address: String,
    pub numa_node: Option<u32>,
    /// In bytes.
    pub memory_free: u64,
    pub memory_total: u64,
    /// Such as `9.0`.
    pub compute_capability: String,
    /// The newest version of CUDA that the driver supports, and the driver's own, if it tells.
    pub driver: String,
}

/// What a GPU did by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Alone {
    /// Multiply-adds of a matrix product in a second.
    products_per_s: f64,
    /// Bytes copied within its memory in a second.
    copied_per_s: f64,
    /// The first number that is wrong.
    wrong: Option<String>,
}

/// How fast two ranks sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PairSpeed {
    pub ranks: [u32; 2],
    pub between_hosts: bool,
    /// Bytes of an all-reduce in a second, in billions.
    pub gb_per_s: f64,
}

impl From<CollectiveError> for CheckError {
    fn from(error: CollectiveError) -> CheckError {
        CheckError::Measurement { kind: error.kind(), text: error.to_string() }
    }
}

/// Asks NCCL to tell what it does.
///
/// # Safety
/// As for [`Log::begin`].
#[expect(unsafe_code, reason = "the log changes the environment")]
pub(super) unsafe fn prepare() -> GpuTest {
    // SAFETY: the caller's.
    let log = unsafe { Log::begin() };
    Box::new(move |info, timeout, most| test(info, timeout, most, &log))
}

/// Tests the GPUs, with sums of up to `most` bytes. All ranks have met, and each gets the report.
/// The ranks, and NCCL, connect within `timeout`.
fn test(
    info: &ClusterInfo,
    timeout: Duration,
    most: u64,
    log: &Log,
) -> Result<Measurement, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let environment = info.environment();
    let group = Group::builder(info).backend(Backend::SharedMemory).quiet(true).timeout(STEP);
    let mut group = group.connect_timeout(timeout).connect()?;
    let card = Card::open(info, timeout);
    let own = CardReport {
        host: host_name().unwrap_or_default(),
        device: card.as_ref().map(|card| card.report.clone()).map_err(Clone::clone),
        nccl: mpienv_gpu::nccl_version(),
        nccl_host_id: environment.get("NCCL_HOSTID").map(|id| id.to_string_lossy().into_owned()),
        infiniband: card::active_ports(Path::new("/sys/class/infiniband")),
    };
    let cards: Vec<CardReport> = share(&mut group, &own)?;
    let names: Vec<String> = cards.iter().map(|card| printable(card.host.as_bytes())).collect();
    let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut findings = Findings::new(&hosts, !environment.is_set(SIMULATED));
    findings.of_cards(&cards);
    let card = card.and_then(|card| Ok((card.alone()?, card)));
    let alone = card.as_ref().map(|(alone, _)| alone.clone()).map_err(Clone::clone);
    let alone: Vec<Result<Alone, GpuError>> = share(&mut group, &alone)?;
    if cards.iter().all(|card| card.device.is_ok()) {
        findings.of_alone(&cards, &alone);
    }
    let nccl = match card {
        Ok((_, card)) if !findings.has_error() => {
            let (group, card, findings) = (&mut group, &card, &mut findings);
            Some(nccl::Test { group, card, most, findings }.run(&cards, log)?)
        }
        _ => None,
    };
    group.close()?;
    let ranks = cards.iter().zip(&alone).zip(shares(&cards, &alone));
    let ranks = ranks.map(|((card, alone), share)| RankGpu {
        host: card.host.clone(),
        device: card.device.as_ref().ok().cloned(),
        nccl: card.nccl.as_ref().ok().cloned(),
        multiply_adds_per_s: alone.as_ref().ok().map(|alone| alone.products_per_s),
        bytes_copied_per_s: alone.as_ref().ok().map(|alone| alone.copied_per_s),
        share,
    });
    let (ranks, bad_hosts): (Vec<_>, _) = (ranks.collect(), findings.bad_hosts());
    Ok(report::measurement(&ranks, nccl.as_ref(), findings.found, bad_hosts))
}

/// Gives all ranks what each of them has, in the order of ranks.
fn share<T: Serialize + DeserializeOwned>(
    group: &mut Group,
    own: &T,
) -> Result<Vec<T>, CheckError> {
    let own = serde_json::to_vec(own).map_err(CheckError::Report)?;
    let all = group.all_gather(&own)?;
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(CheckError::Report);
    all.iter().map(read).collect()
}
