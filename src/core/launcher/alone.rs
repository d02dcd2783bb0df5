//! No launcher: one process by itself, rank 0 of 1.

use crate::launcher::prelude::*;

/// Where the place of a process comes from that has not declared to be by itself.
pub(crate) const NO_VARIABLES: &str = "no launcher gives this process a place";

/// How to declare that a process is by itself.
pub(crate) const BY_ITSELF: &str = "MPIENV_LAUNCHER=alone for a process by itself";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    marker: |_| Some(NO_VARIABLES),
    starts: Starts::One,
    samples: &[Sample::of(|_, _| {})],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let source = marker.variable;
    marker.place(by(source, 0), by(source, 1))?.with_local(by(source, Some(0)), by(source, Some(1)))
}
