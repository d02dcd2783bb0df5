//! No launcher: one process by itself, rank 0 of 1.

use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::sample::Sample;
use crate::launcher::{Advice, LauncherSpec, Marker, MpiFamily, Nested, Starts};
use crate::value::placement::Placement;

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    name: "alone",
    title: "no launcher",
    variables: &[],
    marker: |_| Some("no launcher's variables are set"),
    shared_marker: None,
    read,
    starts: Starts::One,
    advice: Advice { start: "start the process by itself", ..Advice::PLAIN },
    mpi: MpiFamily::None,
    nested: Nested::PLAIN,
    samples: &[Sample { title: "no launcher", set: |_, _| {} }],
};

fn read(_environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let source = marker.variable;
    Placement::new(marker.launcher, (source, 0), (source, 1))?
        .with_local((source, Some(0)), (source, Some(1)))
}
