//! Huawei's Ascend: processes that a script starts with `RANK_ID`, with a rank table or without.
//!
//! The table lists the devices of the job, each with its rank and its server. `DEVICE_ID` may count
//! only the visible devices, so the place on the node comes from the table alone.

use std::collections::BTreeMap;

use crate::launcher::named_file;
use crate::launcher::prelude::*;
use crate::value::json::Json;

variables! {
    /// The variables of a process that a script starts.
    pub struct AscendVars {
        "[MindSpore: rank table startup](https://www.mindspore.cn/tutorials/en/master/parallel/rank_table.html)" {
            RANK = "RANK_ID" => rank: u32, "rank";
            SIZE = "RANK_SIZE" => size: Option<u32>, "world size";
            TABLE = "RANK_TABLE_FILE" => table: Option<String>, "a file with the rank and the server of each device";
        }
    }
}

/// A variable that only a table's user must set.
const DEVICE: &str = "DEVICE_ID";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[AscendVars::VARIABLES],
    // Clusters set the table for every process, also where another launcher gives the rank.
    marker: |environment| {
        environment.first_set(&[RANK]).filter(|_| environment.first_set(&[SIZE, TABLE]).is_some())
    },
    starts: Starts::Slots,
    start: "set RANK_ID, RANK_SIZE and RANK_TABLE_FILE together",
    one_per_node: "one device of each server in the rank table",
    // A table is a file, which a simulated job has not.
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        vars.set(DEVICE, process.local_rank);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: AscendVars = marker.read()?;
    let rank = by(RANK, vars.rank);
    let Some(path) = vars.table else {
        let size = vars.size.ok_or_else(|| marker.missing(SIZE))?;
        return marker.place(rank, by(SIZE, size));
    };
    let malformed = |why: String| marker.refuse(why, TABLE, &path);
    let table = named_file::json(marker, TABLE)?;
    let devices = devices(&table).map_err(malformed)?;
    let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    if let Some(size) = vars.size.filter(|&size| size != count) {
        return Err(malformed(format!("the table has {count} ranks, but {SIZE}=\"{size}\"")));
    }
    let placement = marker.place(rank, by(TABLE, count))?;
    let first = devices.first().map(|(server, _)| *server);
    placement.with_roster(TABLE, &devices)?.with_master(format!("{TABLE}: rank 0's server"), first)
}

/// Returns the devices of a table in rank order, each with its server and its number there, or what
/// is wrong with the table.
fn devices(table: &Json) -> Result<Vec<(&str, u32)>, String> {
    let status = table.get("status").and_then(Json::text).unwrap_or("completed");
    if status != "completed" {
        return Err(format!("the table is not complete: its status is {status:?}"));
    }
    let servers = table.get("server_list").and_then(Json::list);
    let servers = servers.ok_or("the table has no server_list, so it is not of version 1")?;
    let (mut count, mut devices) = (0, BTreeMap::new());
    for server in servers {
        let name = server.get("server_id").and_then(Json::text);
        let name = name.ok_or("a server in the table has no server_id")?;
        let of_server = server.get("device").and_then(Json::list);
        for device in of_server.ok_or("a server in the table has no list of devices")? {
            let number = |key: &str| device.get(key).and_then(Json::number);
            let rank = number("rank_id").ok_or("a device in the table has no rank_id")?;
            let number = number("device_id").ok_or("a device in the table has no device_id")?;
            devices.insert(rank, (name, number));
            count += 1;
        }
    }
    if !devices.keys().copied().eq(0..count) {
        return Err("the table's ranks are not 0, 1, 2, ...".to_owned());
    }
    Ok(devices.into_values().collect())
}
