//! What NCCL says about itself with `NCCL_DEBUG=INFO`: its network, and how each pair of ranks
//! exchanges data.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::{env, process};

use serde::{Deserialize, Serialize};

use crate::Environment;

/// Where NCCL writes what it says, in a folder of this user alone. It disappears at the end.
#[derive(Debug)]
pub(super) struct Log {
    folder: Option<PathBuf>,
}

impl Log {
    /// Asks NCCL to tell what it does. If a user has set `NCCL_DEBUG`, the log is the user's.
    ///
    /// # Safety
    /// Meanwhile, no other thread may read or change the environment, except through `std::env`, and
    /// NCCL, which reads it once, must not be loaded yet.
    #[expect(unsafe_code, clippy::disallowed_methods, reason = "NCCL reads it nowhere else")]
    pub(super) unsafe fn begin() -> Log {
        let environment = Environment::current();
        let is_users = environment.is_set("NCCL_DEBUG") || environment.is_set("NCCL_DEBUG_FILE");
        let folder = env::temp_dir().join(format!("mpienv-nccl-{}", process::id()));
        let created = !is_users && DirBuilder::new().mode(0o700).create(&folder).is_ok();
        let log = Log { folder: created.then_some(folder) };
        if let Some(file) = log.file() {
            // SAFETY: the caller keeps other threads from the environment.
            unsafe {
                env::set_var("NCCL_DEBUG", "INFO");
                env::set_var("NCCL_DEBUG_FILE", file);
            }
        }
        log
    }

    fn file(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join("log"))
    }

    /// Returns what NCCL has chosen so far. `None` if it does not write here.
    pub(super) fn choice(&self) -> Option<Choice> {
        let text = fs::read(self.file()?).ok()?;
        Some(Choice::read(&String::from_utf8_lossy(&text)))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // If it cannot be removed, it stays, as other temporary files do.
        let _ = self.folder.take().map(fs::remove_dir_all);
    }
}

/// What one rank's NCCL has chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Choice {
    /// The network between hosts, such as `IB` or `Socket`.
    pub network: Option<String>,
    /// Its devices or interfaces, as NCCL names them, such as `mlx5_0:1/RoCE` or `eth0`.
    pub interfaces: Vec<String>,
    /// The interface over which the ranks find each other.
    pub bootstrap: Option<String>,
    /// How this rank sends to another one, such as `P2P/CUMEM`, `SHM` or `NET/IB/0/GDRDMA`.
    pub sends: BTreeMap<u32, String>,
}

impl Choice {
    /// Reads the log of one rank. Versions from 2.4 to 2.28 write these lines.
    pub(super) fn read(log: &str) -> Choice {
        let mut choice = Choice::default();
        for line in log.lines() {
            if let Some((_, text)) = line.split_once("NCCL INFO ") {
                choice.note(text.trim());
            }
        }
        choice
    }

    fn note(&mut self, text: &str) {
        if let Some(network) = text.strip_prefix("Using network ") {
            self.network = Some(network.to_owned());
        } else if let Some(using) = text.strip_prefix("Bootstrap") {
            let using = using.split_once("Using ").map(|(_, using)| name(using));
            self.bootstrap = using.or(self.bootstrap.take());
        } else if let Some(rest) = text.strip_prefix("NET/") {
            self.note_network(rest);
        } else if let Some((at, how)) = text.strip_prefix("Channel ").and_then(channel) {
            self.sends.insert(at, how);
        }
    }

    /// Reads `IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>`, for example.
    fn note_network(&mut self, rest: &str) {
        let Some((network, using)) = rest.split_once(" : Using ") else { return };
        let devices = using.split(';').next().unwrap_or(using).split('[').skip(1);
        let devices = devices.filter_map(|device| Some(device.split_once(']')?.1));
        let devices = devices.map(name).filter(|name| !name.is_empty());
        self.network = Some(network.to_owned());
        self.interfaces = devices.collect();
    }
}

/// Returns an interface without its address: `eth0` of `eth0:10.0.0.4<0>`.
fn name(text: &str) -> String {
    let word = text.split_whitespace().next().unwrap_or_default();
    match word.split_once('<') {
        // An address of IPv6 has colons too.
        Some((with_address, _)) => with_address.split(':').next().unwrap_or_default().to_owned(),
        None => word.to_owned(),
    }
}

/// Reads `00/02 : 0[3b000] -> 1[5e000] [send] via NET/IB/0/GDRDMA`: the rank that gets, and how.
/// `None` for a line about what this rank receives.
fn channel(text: &str) -> Option<(u32, String)> {
    let (ranks, how) = text.split_once(" via ")?;
    let (_, to) = ranks.split_once(" -> ")?;
    let to = to.split('[').next()?.trim().parse().ok()?;
    (!ranks.contains("[receive]")).then(|| (to, how.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of NCCL 2.28 on one host, and of 2.18 on two hosts with InfiniBand.
    #[test]
    fn the_network_and_the_transport_to_each_rank_are_read_from_the_log() {
        let choice = Choice::read(
            "node0:60:60 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.4<0>\n\
             node0:60:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.4<0>\n\
             node0:60:71 [0] NCCL INFO Using network IB\n\
             node0:60:71 [0] NCCL INFO Channel 00/02 : 7[ca000] -> 0[3b000] [receive] via NET/IB/0/GDRDMA\n\
             node0:60:71 [0] NCCL INFO Channel 00/02 : 0[3b000] -> 1[5e000] via P2P/IPC/read\n\
             node0:60:71 [0] NCCL INFO Channel 01/02 : 0[3b000] -> 8[3b000] [send] via NET/IB/1/GDRDMA\n\
             node0:60:71 [0] graph/search.cc:1135 NCCL WARN could not find a path\n\
             node0:60:71 [0] graph/search.cc:1135 NCCL WARN could not find a path\n",
        );
        assert_eq!(choice.network.as_deref(), Some("IB"));
        assert_eq!(choice.interfaces, ["mlx5_0:1/RoCE", "mlx5_1:1/RoCE"]);
        assert_eq!(choice.bootstrap.as_deref(), Some("eth0"));
        let sends = [(1, "P2P/IPC/read".to_owned()), (8, "NET/IB/1/GDRDMA".to_owned())];
        assert_eq!(choice.sends, BTreeMap::from(sends));
    }

    #[test]
    fn sockets_are_named_by_their_interfaces() {
        let choice = Choice::read(
            "a:1:1 [0] NCCL INFO Bootstrap : Using eth0:fe80::1%eth0<0>\n\
             a:1:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.4<0> [1]ib0:10.1.0.4<0>\n\
             a:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n",
        );
        assert_eq!(choice.network.as_deref(), Some("Socket"));
        assert_eq!(choice.interfaces, ["eth0", "ib0"]);
        assert_eq!(choice.bootstrap.as_deref(), Some("eth0"));
        assert_eq!(choice.sends[&1], "NET/Socket/0");
        assert_eq!(Choice::read("nothing of NCCL"), Choice::default());
    }
}
