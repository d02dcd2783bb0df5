//! Turns a node's only process into that node's workers.

use crate::cluster::device;
use crate::cluster::info::{Carried, ClusterInfo};
use crate::cluster::master::{Meeting, Scope};
use crate::cluster::overrides::{AUTH, LAUNCHER, TOKEN, TOKEN_FILE};
use crate::error::{Error, Reason};
use crate::launcher::placement::{LaunchStyle, Placement};
use crate::launcher::{Launcher, local_variables};
use crate::value::port::Port;
use crate::value::sourced::Sourced;
use crate::value::token::Token;

/// Why a process cannot start workers if nothing tells how many processes its node has.
pub const NO_LOCAL_SIZE: &str = "the launcher does not provide the local size";

impl ClusterInfo {
    /// The maximum number of workers on a node. No machine has as many cores, and each worker takes
    /// memory to describe.
    pub const MOST_WORKERS: u32 = 1 << 16;

    /// Returns the places of the `per_node` workers that this process starts on its node, in rank
    /// order.
    ///
    /// Use it in jobs with one process on each node: worker `i` on this node has rank
    /// `node * per_node + i` of `nodes * per_node`. If this process is the whole job, its workers
    /// form a job on this node.
    ///
    /// The workers' [`exports`](ClusterInfo::exports) also set `MPIENV_CONTEXT`, so that they take
    /// precedence over all inherited variables. If a worker starts another launcher, that
    /// launcher's processes read its variables instead.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("OMPI_COMM_WORLD_RANK", "1"),
    ///     ("OMPI_COMM_WORLD_SIZE", "2"),
    ///     ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ///     ("MASTER_ADDR", "node-0"),
    /// ])?;
    /// let ranks: Vec<u32> = info.workers(4)?.iter().map(|worker| worker.rank().index()).collect();
    /// assert_eq!(ranks, [4, 5, 6, 7]);
    /// assert!(info.workers(ClusterInfo::MOST_WORKERS + 1).is_err());
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if this process is not known to be the only one on its node, if `per_node`
    /// is 0 or more than [`ClusterInfo::MOST_WORKERS`], or if the world would have more than 2^32 -
    /// 1 ranks.
    pub fn workers(&self, per_node: u32) -> Result<Vec<ClusterInfo>, Error> {
        self.check_per_node()?;
        let nodes = self.world_size();
        let too_many = || {
            let reason = Reason::TooManyWorkers { nodes, workers: per_node };
            let (most, all) = (ClusterInfo::MOST_WORKERS, u32::MAX);
            let remedy =
                format!("start 1 to {most} workers on each node, and at most {all} in all");
            Error::new(reason, remedy)
        };
        let is_possible = (1..=ClusterInfo::MOST_WORKERS).contains(&per_node);
        let size = nodes.checked_mul(per_node).filter(|_| is_possible).ok_or_else(too_many)?;
        Ok((0..per_node).map(|index| self.worker(index, per_node, size)).collect())
    }

    /// Returns the same place, whose exports also set `MPIENV_CONTEXT`.
    ///
    /// Use it for a program that this process becomes or starts, if that program may itself start a
    /// launcher. mpienv in the inner launcher's processes then reads the inner place. Without
    /// `MPIENV_CONTEXT`, it may mistake the outer launcher's variables for those of the inner one.
    /// `mpienv exec` and `Launch` use this method.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Rank};
    ///
    /// let outer = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    /// let local = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")];
    /// let outer = outer.into_iter().chain(local);
    /// let exports = ClusterInfo::from_vars(outer.clone())?.marked().exports()?;
    /// // The program runs `mpiexec -n 2`, whose processes inherit all that, and set PMI's.
    /// let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    /// let inner = [("PMI_RANK", "0"), ("PMI_SIZE", "2")].map(owned);
    /// let outer = outer.map(owned);
    /// let exports = exports.iter().filter_map(|(name, value)| Some(owned((name, value?))));
    /// let info = ClusterInfo::from_vars(outer.chain(exports).chain(inner))?;
    /// assert_eq!(info.rank(), Rank::new(0, 2)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn marked(&self) -> ClusterInfo {
        let mut marked = self.clone();
        marked.carried.context.get_or_insert(self.launcher());
        if self.meeting.token_scope == Scope::Programs {
            marked.carried.overrides.push((TOKEN, self.token().as_str().to_owned()));
        }
        if !marked.carried.to_unset.contains(&LAUNCHER) {
            marked.carried.to_unset.push(LAUNCHER);
        }
        marked
    }

    /// Gives the job another port for rank 0.
    #[doc(hidden)]
    pub fn set_own_port(&mut self, port: Port, source: &'static str) {
        self.meeting.port = Sourced::new(port, source);
        self.meeting.port_scope = Scope::Job;
        self.meeting.default_port.is_used = true;
    }

    /// Gives the job a token that only its own ranks have, unless the user has given a secret.
    #[doc(hidden)]
    pub fn set_own_token(&mut self, token: &str) {
        if self.meeting.token_scope == Scope::Job {
            self.meeting.token = Token::new(token);
        }
    }

    /// Returns the same process as the only one on its node: the rank is the node's number.
    pub(crate) fn as_node(&self) -> Result<ClusterInfo, Error> {
        self.check_per_node()?;
        let mut info = self.clone();
        let place = &mut info.placement;
        (place.node_rank, place.node_count) = (Some(place.rank.clone()), Some(place.size.clone()));
        Ok(info)
    }

    /// Returns an error if this process is not known to be the only one on its node.
    #[doc(hidden)]
    pub fn check_per_node(&self) -> Result<(), Error> {
        if matches!(self.launch_style(), LaunchStyle::Alone | LaunchStyle::PerNode) {
            return Ok(());
        }
        let (rank, ranks) = (self.rank().index(), self.world_size());
        let by_hand = self.launcher() == Launcher::User && self.placement.rank.source == "RANK";
        let is_stale = by_hand && self.local_rank().or(self.local_world_size()).is_none();
        let stale = if is_stale {
            "unset RANK and WORLD_SIZE if they are left from another job; or "
        } else {
            ""
        };
        let what = match (self.local_world_size(), self.node_count()) {
            (None, _) if is_stale => format!(
                "RANK=\"{rank}\" and WORLD_SIZE=\"{ranks}\" are set, and LOCAL_WORLD_SIZE is not"
            ),
            (None, _) => NO_LOCAL_SIZE.to_owned(),
            (Some(1), Some(nodes)) => {
                format!("it is alone on its node, but the job has {ranks} ranks on {nodes} nodes")
            }
            (Some(size), _) => format!("{size} ranks of the job are on its node"),
        };
        let remedy = format!(
            "{stale}start one process on each node: {}; to start an independent job, set \
             {LAUNCHER}=alone",
            self.launcher().spec().one_per_node
        );
        Err(Error::new(Reason::NotPerNode(what), remedy).by(self.launcher()))
    }

    /// Returns worker `index` of the `per_node` on this node, in a job of `size` workers.
    fn worker(&self, index: u32, per_node: u32, size: u32) -> ClusterInfo {
        let (node, nodes) = (self.rank().index(), self.world_size());
        let rule = format!("worker {index} of {per_node} on node {node} of {nodes}");
        let of_rule = |number: u32| Sourced::new(number, rule.clone());
        let mut worker = self.clone();
        worker.placement = Placement {
            launcher: Sourced::new(Launcher::User, rule.clone()),
            rank: of_rule(node * per_node + index),
            size: of_rule(size),
            local_rank: Some(of_rule(index)),
            local_size: Some(of_rule(per_node)),
            node_rank: Some(of_rule(node)),
            node_count: Some(of_rule(nodes)),
            ..worker.placement
        };
        let Carried { overrides, to_unset, context } = &mut worker.carried;
        *context = Some(Launcher::User);
        // The override is for the process that starts the workers, not for the workers.
        to_unset.push(LAUNCHER);
        if per_node > 1 {
            to_unset
                .extend(local_variables().into_iter().filter(|name| self.inherited.is_set(name)));
        }
        let Meeting { token, token_scope, auth, .. } = &self.meeting;
        if *token_scope != Scope::Job {
            // Pass on only the name of the file, so that its secret stays in it.
            let named = token.file().map(|file| (TOKEN_FILE, file.to_owned()));
            overrides.push(named.unwrap_or_else(|| (TOKEN, token.as_str().to_owned())));
        }
        overrides.extend(auth.iter().map(|munge| (AUTH, munge.to_string())));
        worker.surroundings.device_index = device::index(&self.inherited, Some(index));
        worker
    }
}
