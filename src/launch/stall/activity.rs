//! What shows that a worker is making progress: the bytes that it writes, and its heartbeat file.

use std::fs::Metadata;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A value that differs whenever a worker has been active in between. What it contains means
/// nothing else: clocks of file servers differ from that of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Trace([u128; 4]);

impl Trace {
    /// The trace of two streams, of which this many bytes were read.
    pub(in super::super) fn of_bytes(streams: [u64; 2]) -> Trace {
        Trace([streams[0].into(), streams[1].into(), 0, 0])
    }

    /// The trace of two files, which need not exist.
    pub(in super::super) fn of_files(paths: [&Path; 2]) -> Trace {
        let [one, other] = paths.map(|path| std::fs::metadata(path).ok());
        let length = |file: &Option<Metadata>| file.as_ref().map_or(0, |file| file.len().into());
        Trace([length(&one), time(&one), length(&other), time(&other)])
    }

    /// The trace of a heartbeat file.
    pub(super) fn of_file(path: &Path) -> Trace {
        let file = std::fs::metadata(path).ok();
        Trace([time(&file), file.map_or(0, |file| file.len().into()), 0, 0])
    }
}

fn time(file: &Option<Metadata>) -> u128 {
    let time =
        file.as_ref().and_then(|file| file.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH);
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}
