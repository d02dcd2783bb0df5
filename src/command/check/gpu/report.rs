//! What `check --gpu` reports, as JSON and as text: the GPUs, how each is by itself, and what NCCL
//! did.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;

use super::DeviceReport;
use super::nccl::NcclReport;
use crate::Finding;
use crate::command::check::measurement::{Measurement, figure, figure_or_dash, or_dash, table};
use mpienv_core::seam::counted;

/// Up to so many ranks are listed one by one. JSON lists all.
const MOST_ROWS: usize = 64;

/// One rank's GPU.
#[derive(Serialize)]
pub(super) struct RankGpu {
    pub host: String,
    pub device: Option<DeviceReport>,
    /// The version of NCCL.
    pub nccl: Option<String>,
    pub multiply_adds_per_s: Option<f64>,
    pub bytes_copied_per_s: Option<f64>,
    /// Parts of the median of all GPUs of its model: matrix product, copy.
    pub share: Option<[f64; 2]>,
}

/// Returns what was found out about the ranks' GPUs, which are in the order of ranks. `nccl`: what
/// NCCL did, if no finding kept it from being started. `bad_hosts`: those that findings blame.
pub(super) fn measurement(
    ranks: &[RankGpu],
    nccl: Option<&NcclReport>,
    findings: Vec<Finding>,
    bad_hosts: Vec<String>,
) -> Measurement {
    let report = json!({ "ranks": ranks, "nccl": nccl, "bad_hosts": bad_hosts });
    Measurement { report, text: text(ranks, nccl), findings, bad_hosts }
}

/// Returns the GPUs and what they did.
fn text(ranks: &[RankGpu], nccl: Option<&NcclReport>) -> String {
    let all = |value: fn(&RankGpu) -> Option<String>| {
        let values: BTreeSet<String> = ranks.iter().filter_map(value).collect();
        if values.is_empty() { "-".to_owned() } else { Vec::from_iter(values).join(" and ") }
    };
    let driver = all(|own| Some(own.device.as_ref()?.driver.clone()));
    let mut text = format!(
        "\ngpu: {}, {}, driver {driver}, NCCL {}\n",
        counted(ranks.len(), "rank"),
        all(|own| Some(own.device.as_ref()?.name.clone())),
        all(|own| own.nccl.clone()),
    );
    let head = [
        "rank",
        "host",
        "device",
        "PCI address",
        "NUMA node",
        "GB free",
        "product Tflop/s",
        "share %",
        "copy GB/s",
        "share %",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(ranks.iter().enumerate().take(MOST_ROWS).map(|(rank, own)| row(rank, own)));
    text += &table(&rows, true);
    if ranks.len() > MOST_ROWS {
        text += &format!("the first {MOST_ROWS} ranks are listed; --json lists all\n");
    }
    text + &nccl.map_or("NCCL was not started\n".to_owned(), of_nccl)
}

fn row(rank: usize, own: &RankGpu) -> Vec<String> {
    let percent = |at: usize| or_dash(own.share.map(|share| format!("{:.0}", 100.0 * share[at])));
    let device = own.device.as_ref();
    vec![
        rank.to_string(),
        own.host.clone(),
        or_dash(device.map(|own| own.ordinal)),
        or_dash(device.map(|own| &own.pci_address)),
        or_dash(device.and_then(|own| own.numa_node)),
        figure_or_dash(device.map(|own| own.memory_free as f64 / 1e9)),
        figure_or_dash(own.multiply_adds_per_s.map(|rate| 2.0 * rate / 1e12)),
        percent(0),
        figure_or_dash(own.bytes_copied_per_s.map(|rate| rate / 1e9)),
        percent(1),
    ]
}

fn of_nccl(nccl: &NcclReport) -> String {
    let network = match (&nccl.network, &nccl.interfaces[..]) {
        (None, _) => "its log is the user's, so the network is not known".to_owned(),
        (Some(network), []) => format!("network {network}"),
        (Some(network), interfaces) => format!("network {network} ({})", interfaces.join(", ")),
    };
    let mut text = format!("\nnccl: connected in {:.2} s, {network}\n", nccl.seconds);
    let mut ways: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for path in &nccl.paths {
        ways.entry(&path.how).or_default().push(format!("{} to {}", path.from, path.to));
    }
    for (how, pairs) in ways {
        let (shown, left_out) = pairs.split_at(pairs.len().min(8));
        let more = match left_out.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        text += &format!("  {how}: ranks {}{more}\n", shown.join(", "));
    }
    let head = ["all-reduce bytes", "time us", "GB/s", "bus GB/s", "numbers"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(nccl.sums.iter().map(|sum| {
        vec![
            sum.bytes.to_string(),
            figure(sum.seconds * 1e6),
            figure(sum.gb_per_s),
            figure(sum.bus_gb_per_s),
            if sum.is_right { "right" } else { "wrong" }.to_owned(),
        ]
    }));
    text + &table(&rows, true)
}
