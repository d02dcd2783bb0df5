//! PyTorch's torchcomms: a rank and a size under its own names.

use crate::launcher::prelude::*;

variables! {
    /// The variables that torchcomms reads first.
    pub struct TorchCommsVars {
        "[comms/torchcomms/utils/Utils.cpp](https://github.com/meta-pytorch/torchcomms/blob/main/comms/torchcomms/utils/Utils.cpp)" {
            RANK = "TORCHCOMM_RANK" => rank: u32, "rank";
            SIZE = "TORCHCOMM_SIZE" => size: u32, "world size";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[TorchCommsVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK, SIZE]),
    starts: Starts::Slots,
    start: "set TORCHCOMM_RANK and TORCHCOMM_SIZE together",
    one_per_node: "RANK, WORLD_SIZE, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=1 besides",
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size])
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: TorchCommsVars = marker.read()?;
    marker.place(by(RANK, vars.rank), by(SIZE, vars.size))
}
