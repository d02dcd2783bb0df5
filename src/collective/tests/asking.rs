//! A call that waits asks whether it is canceled.

use std::sync::Arc;

use super::*;
use crate::seam::ask_while_waiting;

#[test]
fn a_call_that_waits_asks_in_its_own_thread_until_it_is_canceled() {
    // The transports over which rank 1 has ended its calls.
    let ended = Mutex::new(Vec::new());
    for (over, errors) in over_each(3, |group| {
        let over = group.describe();
        if over.contains("threads") {
            // It does not ask.
            return None;
        }
        if group.rank().index() != 1 {
            let begun = Instant::now();
            while !ended.lock().unwrap().contains(&over) {
                assert!(begun.elapsed() < PLENTY / 2);
                thread::sleep(Duration::from_millis(10));
            }
            // The first may still meet that of rank 1.
            let error = (0..2).find_map(|_| group.barrier().err());
            return Some(vec![error.unwrap().to_string()]);
        }
        let (asked, own) = (Arc::new(AtomicU32::new(0)), thread::current().id());
        let asks = Arc::clone(&asked);
        ask_while_waiting(group, move || {
            assert_eq!(thread::current().id(), own);
            asks.fetch_add(1, Ordering::Relaxed) == 2
        });
        let errors = [(); 2].map(|()| group.barrier().unwrap_err().to_string()).to_vec();
        assert_eq!(asked.load(Ordering::Relaxed), 3, "{over}");
        ended.lock().unwrap().push(over);
        Some(errors)
    }) {
        for (rank, errors) in errors.into_iter().enumerate() {
            for error in errors.into_iter().flatten() {
                let lost = error.starts_with("rank 1 on ") && error.contains("canceled");
                let canceled = error == CollectiveError::Canceled.to_string();
                assert!(if rank == 1 { canceled } else { lost }, "{over}, rank {rank}: {error}");
            }
        }
    }
}
