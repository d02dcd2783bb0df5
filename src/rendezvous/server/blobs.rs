//! Decides which connections may send a long blob now, so that unfinished blobs take little memory.
//!
//! The other connections wait unread. The system stops their senders, which lose nothing but time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Server;
use super::admission::network;

/// How many bytes of unfinished long blobs rank 0 holds at most.
const UNFINISHED: usize = 16 << 20;
/// While others wait, a blob whose next bytes take longer gives way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long to read long blobs before looking at the other connections and at the deadline.
const AT_ONCE: Duration = Duration::from_millis(50);
/// How many bytes have to come within that time, unless the blob is complete earlier.
const STEP: usize = 32 * 1024;

/// The connections that have proven that they have the token, and whose long blob is not complete.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// By the connection's serial number.
    all: BTreeMap<u64, Blob>,
    /// Whether the oldest connection of a network comes next, and not the newest.
    is_turn_of_oldest: bool,
}

#[derive(Debug)]
struct Blob {
    id: usize,
    network: IpAddr,
    length: usize,
    /// When the last step was complete, and how many bytes have come since. `None` if it waits.
    read: Option<(Instant, usize)>,
}

impl Blobs {
    /// Returns whether the connection may send its blob now; otherwise it has to wait.
    pub(super) fn may_read(&mut self, serial: u64, id: usize, peer: IpAddr, length: usize) -> bool {
        if let Some(known) = self.all.get(&serial) {
            return known.read.is_some();
        }
        let may = self.waiting().next().is_none() && self.fits(length);
        let read = may.then(|| (Instant::now(), 0));
        self.all.insert(serial, Blob { id, network: network(peer), length, read });
        may
    }

    /// Notes that bytes of a blob have come.
    pub(super) fn count(&mut self, serial: u64, length: usize) {
        let read = self.all.get_mut(&serial).and_then(|blob| blob.read.as_mut());
        let Some((since, fresh)) = read else { return };
        *fresh += length;
        if *fresh >= STEP {
            (*since, *fresh) = (Instant::now(), 0);
        }
    }

    /// Notes that a connection's blob is complete, or no longer wanted.
    pub(super) fn forget(&mut self, serial: u64) {
        self.all.remove(&serial);
    }

    fn waiting(&self) -> impl Iterator<Item = (&u64, &Blob)> {
        self.all.iter().filter(|(_, blob)| blob.read.is_none())
    }

    fn reading(&self) -> impl Iterator<Item = &Blob> {
        self.all.values().filter(|blob| blob.read.is_some())
    }

    fn fits(&self, length: usize) -> bool {
        self.reading().map(|blob| blob.length).sum::<usize>() + length <= UNFINISHED
    }

    /// Starts the next blob if it fits, and returns its connection.
    fn next(&mut self) -> Option<usize> {
        self.waiting().next()?;
        // A network that sends many blobs does not delay another. Within it, neither a crowd that
        // is there already nor one that keeps coming holds a connection up forever.
        let mut shares: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for blob in self.reading() {
            *shares.entry(blob.network).or_default() += blob.length;
        }
        let share = |blob: &Blob| shares.get(&blob.network).copied().unwrap_or_default();
        let least = self.waiting().map(|(_, blob)| share(blob)).min()?;
        let candidates = self.waiting().filter(|(_, blob)| share(blob) == least);
        let candidates = candidates.map(|(&serial, blob)| (serial, blob.length));
        let next = if self.is_turn_of_oldest { candidates.min() } else { candidates.max() };
        let (serial, _) = next.filter(|&(_, length)| self.fits(length))?;
        self.is_turn_of_oldest = !self.is_turn_of_oldest;
        let blob = self.all.get_mut(&serial)?;
        blob.read = Some((Instant::now(), 0));
        Some(blob.id)
    }

    /// Returns the connection that has made no progress for longest, and since when.
    fn slowest(&self) -> Option<(usize, Instant)> {
        let reading = self.all.values().filter_map(|blob| Some((blob.id, blob.read?.0)));
        reading.min_by_key(|&(_, since)| since)
    }

    /// The connections whose blob is not complete.
    pub(super) fn unfinished(&self) -> Vec<usize> {
        self.all.values().map(|blob| blob.id).collect()
    }
}

impl Server<'_> {
    /// Reads the blobs that have room now, and makes room by closing connections that make no
    /// progress. Their ranks connect again. Returns how long until that may be due.
    pub(super) fn serve_blobs(&mut self) -> Duration {
        let begun = Instant::now();
        loop {
            while let Some(id) = self.blobs.next() {
                self.read(id);
                if begun.elapsed() > AT_ONCE {
                    return Duration::ZERO;
                }
            }
            if self.blobs.waiting().next().is_none() {
                return Duration::MAX;
            }
            let Some((id, since)) = self.blobs.slowest() else { return Duration::MAX };
            let idle = since.elapsed();
            if idle < PATIENCE {
                return PATIENCE - idle;
            }
            // What the last turn has not read yet counts too.
            self.read(id);
            if self.blobs.slowest().is_some_and(|slowest| slowest == (id, since)) {
                self.close(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 1 << 20;

    fn address(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    /// Blobs of a crowd at one address, as many as may be read and two more that wait.
    fn crowd() -> Blobs {
        let mut blobs = Blobs::default();
        let may = (0..18)
            .map(|serial| blobs.may_read(serial, 100, address(9), LONG))
            .filter(|&may| may)
            .count();
        assert_eq!((may, blobs.next()), (UNFINISHED / LONG, None));
        blobs
    }

    #[test]
    fn what_has_no_room_waits_and_another_address_comes_first() {
        let mut blobs = crowd();
        assert!(
            !blobs.may_read(20, 7, address(1), 5000) && !blobs.may_read(21, 100, address(9), 5000)
        );
        blobs.forget(3);
        assert_eq!(blobs.next(), Some(7));
        assert!(blobs.may_read(20, 7, address(1), 5000), "it is being read");
        // The rest of the room is too small for the oldest, which is next.
        assert_eq!(blobs.next(), None);
    }

    #[test]
    fn the_newest_and_the_oldest_take_turns() {
        let mut blobs = crowd();
        (20..24)
            .for_each(|serial| assert!(!blobs.may_read(serial, serial as usize, address(9), LONG)));
        (0..4).for_each(|serial| blobs.forget(serial));
        assert_eq!([(); 4].map(|()| blobs.next()), [Some(23), Some(100), Some(22), Some(100)]);
    }

    #[test]
    fn what_makes_no_progress_is_named_first() {
        let mut blobs = crowd();
        let (_, begun) = blobs.slowest().unwrap();
        (0..16).for_each(|serial| blobs.count(serial, STEP));
        assert!(blobs.slowest().unwrap().1 >= begun);
        let behind = blobs.all[&0].read.unwrap().0;
        (1..16).for_each(|serial| blobs.count(serial, STEP));
        blobs.count(0, STEP - 1);
        assert_eq!(blobs.slowest().unwrap().1, behind);
        assert_eq!(blobs.unfinished().len(), 18);
        (0..18).for_each(|serial| blobs.forget(serial));
        assert!(blobs.all.is_empty() && blobs.slowest().is_none());
    }
}
