//! What tests/it/warnings.rs starts: a process by itself that connects two groups. `quiet` as an
//! argument silences them.

use std::error::Error;

use mpienv::ClusterInfo;
use mpienv::collective::Group;

fn main() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    if std::env::args().any(|word| word == "quiet") {
        Group::builder(&info).quiet(true).connect()?.close()?;
    } else {
        Group::connect(&info)?.close()?;
        Group::connect(&info)?.close()?;
    }
    Ok(())
}
