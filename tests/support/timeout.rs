//! The timeouts that tests give to the ranks they start.

/// In seconds, for ranks that meet: they have time, however late the last one starts.
pub const PATIENT: &str = "1200";

/// Runs a job with longer and longer timeouts, in seconds, until its ranks were in time, and
/// returns what it returned.
///
/// For a timeout that must pass while other ranks are there: on a busy machine, those come too late
/// for a short one.
pub fn in_time<T>(mut job: impl FnMut(u32) -> T, were_in_time: impl Fn(&T) -> bool) -> T {
    for timeout in [3, 12, 48, 192] {
        let ended = job(timeout);
        if were_in_time(&ended) {
            return ended;
        }
    }
    job(768)
}
