//! What mpienv waits for before it starts the command.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::check::{JobMap, Measures, exchange_endpoints, exchange_secret, meet};
use crate::command::doctor::as_warning;
use crate::command::protection::no_answer;
use crate::{ClusterInfo, Error, Host};
use clap::Args;
use mpienv_ask::own_addr;
use mpienv_core::seam::{Plan, PlanOptions};
use mpienv_launch::seam::{ARRIVAL, NodeOptions};

use super::{Failure, Quiet, check, lines_of, stream, time};

/// How long to wait for the other ranks.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MeetOption {
    /// Start once all ranks have arrived, or fail after a time such as 90s or 10m and name the
    /// missing ones
    ///
    /// The ranks meet at the master as in `mpienv check`, and then start together, so that the
    /// program's own time limit does not run while a rank is late. If a rank does not arrive, rank
    /// 0 names it, and the ranks that did arrive exit with code 124, up to ten seconds later if
    /// rank 0 stops answering. A process that is probably one of several, and would meet only
    /// itself, exits with code 3. With `launch`, the processes that start the workers of each node
    /// meet.
    #[arg(long, value_name = "TIME", value_parser = time)]
    meet: Option<Duration>,
    /// Whether the launches meet unasked, to compare what they have counted.
    #[arg(skip)]
    is_unasked: bool,
}

impl MeetOption {
    pub(super) fn time(self) -> Option<Duration> {
        self.meet
    }

    pub(super) fn is_asked(self) -> bool {
        self.meet.is_some()
    }

    /// Lets launches that have counted their workers meet in any case, to compare the numbers.
    pub(super) fn to_compare(self) -> MeetOption {
        MeetOption { meet: self.meet.or(Some(ARRIVAL)), is_unasked: self.meet.is_none() }
    }

    pub(super) fn is_unasked(self) -> bool {
        self.is_unasked
    }

    /// Refuses to meet if this process is probably one of several, and would meet only itself.
    pub(super) fn check(self, info: &ClusterInfo) -> Result<(), Failure> {
        match check::only_itself(info).cloned().filter(|_| self.is_asked()) {
            Some(found) => Err(Failure::refused("the program was not started", found)),
            None => Ok(()),
        }
    }

    /// Lets the ranks meet, and plans again with what they have to tell each other.
    pub(super) fn meet_and_replan(
        self,
        plan: Plan,
        info: &ClusterInfo,
        options: &mut PlanOptions,
        quiet: Quiet,
    ) -> Result<Plan, Failure> {
        let Some(patience) = self.meet else { return Ok(plan) };
        let needs = plan.needs;
        // Errors of this rank are reported before it waits for the others.
        if !needs.endpoints {
            plan.variables.as_ref().map_err(Error::clone)?;
        }
        let own = needs.endpoints.then(|| info.own_endpoint(&own_addr(info)?)).transpose()?;
        self.wait(info, None, quiet)
            .map_err(|failure| failure.unless_said(options.said.iter().map(String::as_str)))?;
        let others = own.map(|own| exchange_endpoints(info, &own, patience)).transpose()?;
        options.secret = needs.secret.then(|| exchange_secret(info, patience)).transpose()?;
        let info = others.map_or_else(|| info.clone(), |others| info.with_endpoints(others));
        Ok(Plan::new(&info, options))
    }

    /// Lets the ranks meet, or the launches of all nodes, each with its options. Rank 0 gets the
    /// map.
    pub(super) fn wait(
        self,
        info: &ClusterInfo,
        launch: Option<NodeOptions>,
        quiet: Quiet,
    ) -> Result<Option<JobMap>, Failure> {
        let Some(patience) = self.meet else { return Ok(None) };
        let command = if launch.is_some() { "launch --meet" } else { "exec --meet" };
        let map = meet(info, patience, None, Measures::default(), launch, command)
            .map_err(|error| check::failure(info, error))?;
        let no_munge = map.as_ref().and_then(|map| map.no_munge.clone()).map(Err);
        let mut open = no_answer(info, no_munge.as_ref()).map(as_warning);
        if let Some(open) = &mut open {
            open.why = "the ranks have met without it, as processes of other users could".into();
        }
        quiet.print(info, open.as_slice());
        let errors = || map.iter().flat_map(JobMap::errors);
        stream::report(&lines_of(errors()));
        if errors().next().is_none() { Ok(map) } else { Err(Failure::Disagreement) }
    }
}

/// The pause between two attempts, because many ranks share one name server.
const PAUSE: Duration = Duration::from_millis(500);

/// Tries until the host has an address, for at most `patience`. Addresses need no time.
pub(super) fn wait_for_address(
    host: &Host,
    patience: Duration,
    mut resolve: impl FnMut(Duration) -> Result<Vec<IpAddr>, String>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + patience;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut earlier = None;
    loop {
        let reason = match resolve(left()) {
            Ok(found) if !found.is_empty() => return Ok(()),
            Ok(_) => "it has no address".to_owned(),
            Err(reason) => reason,
        };
        if left().is_zero() {
            // An attempt that the deadline cuts short provides a worse reason than an earlier one.
            let reason = earlier.unwrap_or(reason);
            return Err(Failure::Unresolved { host: host.to_string(), waited: patience, reason });
        }
        earlier = Some(reason);
        thread::sleep(PAUSE.min(left()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_resolves_late_is_waited_for() {
        let host: Host = "pod-0".parse().unwrap();
        let mut tries = 0;
        let late = |_| {
            tries += 1;
            if tries < 3 {
                Err("Name or service not known".to_owned())
            } else {
                Ok(vec![IpAddr::from([10, 0, 0, 1])])
            }
        };
        assert!(wait_for_address(&host, Duration::from_secs(60), late).is_ok());
        assert_eq!(tries, 3);
    }
}
