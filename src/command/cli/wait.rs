//! What mpienv waits for before it starts the command.

use std::time::Duration;

use crate::command::check::{Measures, exchange_endpoints, exchange_secret};
use crate::command::resolve;
use crate::{ClusterInfo, Error, Reason};
use clap::Args;
use mpienv_core::seam::InfoSeam as _;

use super::{Failure, check, lines_of, stream, time};

/// How long to wait for the other ranks.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MeetOption {
    /// Start once all ranks have arrived, or fail after a time such as 90s or 10m and name the
    /// missing ones
    ///
    /// The ranks meet at the master as in `mpienv check`, and then start together, so that the
    /// program's own time limit does not run while a rank is late. If a rank does not arrive, rank
    /// 0 names it, and the ranks that did arrive exit with code 124. With `launch`, the processes
    /// that start the workers of each node meet.
    #[arg(long, value_name = "TIME", value_parser = time)]
    meet: Option<Duration>,
}

/// How long to wait for the master's name.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MasterOption {
    /// Start once the master's name resolves, or fail after a time such as 90s or 10m
    ///
    /// In Kubernetes, pods start before their names resolve. If the name does not resolve in time,
    /// the exit code is 124.
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait_for_master: Option<Duration>,
}

impl MasterOption {
    pub(super) fn wait(self, info: &ClusterInfo) -> Result<(), Failure> {
        let Some(patience) = self.wait_for_master else { return Ok(()) };
        Ok(resolve::wait(info.master_addr()?, patience)?)
    }
}

impl MeetOption {
    pub(super) fn is_asked(self) -> bool {
        self.meet.is_some()
    }

    /// Returns the exports. If they need the hosts of all ranks and the launcher does not provide
    /// them, the ranks exchange their endpoints.
    pub(super) fn exports<T>(
        self,
        info: &ClusterInfo,
        exports: impl Fn(&ClusterInfo) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let known = exports(info);
        let asks = |error: &Error| matches!(error.reason(), Reason::HostsUnknown { .. });
        let Some(patience) = self.meet.filter(|_| known.as_ref().is_err_and(asks)) else {
            // Errors of this rank are reported before it waits for the others.
            let known = known?;
            self.wait(info)?;
            return Ok(known);
        };
        let own = info.own_endpoint()?;
        self.wait(info)?;
        let endpoints = exchange_endpoints(info, &own, patience)?;
        Ok(exports(&info.with_endpoints(endpoints))?)
    }

    /// Returns a random secret that all ranks get. They meet for it; `None` if they do not.
    pub(super) fn secret(self, info: &ClusterInfo) -> Result<Option<String>, Failure> {
        Ok(self.meet.map(|patience| exchange_secret(info, patience)).transpose()?)
    }

    pub(super) fn wait(self, info: &ClusterInfo) -> Result<(), Failure> {
        let Some(patience) = self.meet else { return Ok(()) };
        let Some(map) = check::meet(info, patience, None, Measures::default())? else {
            return Ok(());
        };
        let errors = map.errors();
        stream::report(lines_of(&errors).as_bytes());
        if errors.is_empty() { Ok(()) } else { Err(Failure::Disagreement) }
    }
}
