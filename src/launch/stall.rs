//! Jobs that hang: how their silence is noticed, and what their ranks are doing at that moment.
//!
//! Each node has a [`Watch`], which reports when its workers have been silent for the time of
//! `--stall-timeout`. Once all nodes are silent, each looks at its own workers and sends a
//! [`Sight`] of each to the coordinator, which makes a [`Stall`] of them.

mod activity;
mod json;
mod process;
mod python;
mod report;
mod sight;
mod syscall;
mod watch;

pub(super) use activity::Trace;
pub(super) use report::Stall;
pub(super) use sight::Sight;
pub(super) use watch::Watch;
