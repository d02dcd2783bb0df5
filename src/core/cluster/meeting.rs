//! Where and how the ranks of a job meet.

use std::fmt::Display;

use crate::error::Error;
use crate::value::host::Host;
use crate::value::port::{Port, PortRange};
use crate::value::sourced::Sourced;
use crate::value::token::{Munge, Token};

/// Where the ranks meet, and how they recognize each other. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Rank 0's host, or the error that explains why it is unknown.
    pub addr: Result<Sourced<Host>, Error>,
    pub addr_scope: Scope,
    pub port: Sourced<Port>,
    pub port_scope: Scope,
    pub default_port: DefaultPort,
    pub token: Token,
    pub token_scope: Scope,
    pub auth: Option<Munge>,
}

/// Which jobs have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This job alone.
    Job,
    /// This job alone, as a secret that only the programs that mpienv starts may have.
    Programs,
    /// Perhaps several jobs of a user, who has set it.
    User,
}

impl Scope {
    /// Returns the scope of a value that a user may have set by one of two variables. The first of
    /// them may also be set for this job alone, by its launcher (`comes_along`) or by mpienv
    /// (`in_context`).
    pub(crate) fn of(
        known: &Sourced<impl Display>,
        [plain, asked]: [&str; 2],
        comes_along: bool,
        in_context: Option<&String>,
    ) -> Scope {
        let is_of_context = || in_context.is_some_and(|own| *own == known.value.to_string());
        let is_set = known.source == plain && !comes_along && !is_of_context();
        if known.source == asked || is_set { Scope::User } else { Scope::Job }
    }
}

/// The port of a rank for which neither an option nor a variable sets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultPort {
    pub port: Port,
    /// Whether it is derived from this job, so that other jobs do not share it.
    pub is_derived: bool,
    /// Whether the ranks meet there, because nothing sets another one.
    pub is_used: bool,
    /// The range from which ports are derived.
    pub range: PortRange,
}
