//! Memory that the ranks of one host share, and the order in which they use it in calls of all ranks.
//!
//! The memory is an unnamed file (`memfd_create`). Ranks open it through `/proc/PID/fd`. It
//! disappears with the last rank, even if ranks are killed. Ranks use it in rounds. In a round,
//! every rank fills its own slot, publishes it, waits for all others, and then reads any slot. A
//! rank has two slots, for odd and even rounds. When it fills one, all others have finished reading
//! it, because they have published the round in between.

#![expect(unsafe_code, reason = "memory that other processes write to")]

mod mailbox;

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use serde::{Deserialize, Serialize};

use self::mailbox::{Mailbox, Passed};
use crate::call::Call;
use crate::rendezvous;

/// Two cache lines, which processors load together. Data that different ranks write is this far
/// apart.
const LINE: usize = 128;
const PAGE: usize = 4096;
/// The most bytes that a rank publishes in a round. They stay in the processor's cache until they
/// are read.
const SLOT: usize = 512 * 1024;
/// Slots are this much further apart than their length. Otherwise, what all ranks read at one
/// place of each slot would compete for the same sets of the caches: with it, 1 MiB of 16 ranks
/// takes 0.8 of the time.
const GAP: usize = 33 * LINE;
/// The size of the largest number. A slot has room for one for each rank.
const LARGEST: usize = size_of::<u64>();
/// The most bytes of all slots, if there are not thousands of ranks.
const MOST: usize = 64 << 20;

/// The state of one rank in the rounds, which the others read. All zeros, as a new file is, is a
/// valid start.
#[repr(C, align(128))]
struct Place {
    /// The last round that the rank has published.
    published: AtomicU32,
    /// The processor that the rank ran on when it published, or posted a message.
    processor: AtomicU32,
    /// The next round, in the upper half, and how many bytes of it the rank has completed; 0 if it
    /// publishes rounds only as a whole.
    completed: AtomicU64,
    /// The rank's calls in even and odd rounds: like its slots, because it may publish the next
    /// round before another rank has read this one's.
    calls: [Described; 2],
    sleepers: Sleepers,
    mailbox: Mailbox,
}

/// A call. It is stored and loaded relaxed: what the rank publishes next shows it to the others.
#[repr(C)]
struct Described {
    codes: AtomicU32,
    root: AtomicU32,
    count: AtomicU64,
}

impl Described {
    fn store(&self, call: Call) {
        let [operation, kind, how] = call.codes();
        self.codes.store(u32::from_le_bytes([operation, kind, how, 0]), Ordering::Relaxed);
        self.root.store(call.root, Ordering::Relaxed);
        self.count.store(call.count, Ordering::Relaxed);
    }

    /// The call; `None` if it cannot be read.
    fn load(&self) -> Option<Call> {
        let [operation, kind, how, _] = self.codes.load(Ordering::Relaxed).to_le_bytes();
        let root = self.root.load(Ordering::Relaxed);
        Call::from_codes([operation, kind, how], self.count.load(Ordering::Relaxed), root)
    }
}

/// How many ranks sleep until this one publishes. On cache lines of its own, because other ranks
/// write it.
#[repr(C, align(128))]
struct Sleepers(AtomicU32);

/// What a rank needs to open another's memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    process: u32,
    descriptor: i32,
    length: u64,
    /// The first bytes of the memory, which are random: they distinguish it from another file with
    /// the same descriptor.
    nonce: [u8; 16],
}

/// The memory, as one rank sees it.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    length: usize,
    ranks: usize,
    own: usize,
    slot: usize,
    /// The last round that this rank has published.
    round: u32,
    /// Whether all ranks have published that round.
    is_complete: bool,
    /// The messages between this rank and each of the others.
    passed: Vec<Passed>,
}

/// The slots of a round that all ranks have published, or as many bytes of the next round as all
/// have completed.
#[derive(Clone, Copy)]
pub(super) struct Slots<'a> {
    memory: &'a Memory,
    round: u32,
    /// In bytes, of each slot.
    pub(super) length: usize,
}

impl<'a> Slots<'a> {
    /// What a rank has published or completed.
    pub(super) fn of(self, rank: usize) -> &'a [u8] {
        let (at, _) = self.memory.slot_at(rank, self.round);
        // SAFETY: the bytes lie within the slot, and no rank writes to them. If every rank has
        // published this round, each writes the next round to its other slot. If not, each has
        // completed as many, whose writes are visible since their number was loaded, and writes
        // only behind them until all ranks have published the round. This rank, too, gets only its
        // other slot or the bytes behind them from `next`.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), self.length) }
    }
}

/// The number of the processor that this thread runs on.
fn processor() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX)
}

/// The most bytes that each of `ranks` ranks can publish in a round.
pub(crate) fn slot_length(ranks: usize) -> usize {
    let share = (LARGEST * ranks).next_multiple_of(PAGE);
    let most = (MOST / (2 * ranks)).saturating_sub(GAP).min(SLOT);
    (most / PAGE * PAGE).max(share)
}

fn slots_begin(ranks: usize) -> usize {
    (LINE + ranks * size_of::<Place>()).next_multiple_of(PAGE)
}

fn total(ranks: usize) -> usize {
    slots_begin(ranks) + 2 * ranks * (slot_length(ranks) + GAP)
}

/// Creates memory for `ranks` ranks. The others can open it by the offer while the returned file is
/// open.
pub(super) fn create(ranks: usize) -> io::Result<(OwnedFd, Offer)> {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&rendezvous::nonce()?[..16]);
    let file = rustix::fs::memfd_create(
        "mpienv-collective",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    let length = total(ranks) as u64;
    // Beyond the limit, the system would send a signal that ends this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|&limit| limit < length) {
        return Err(io::Error::other(format!(
            "the limit of file sizes (ulimit -f) is {limit} bytes, and the memory of this host's \
             ranks takes {length}"
        )));
    }
    rustix::fs::ftruncate(&file, length)?;
    // Allocate now, when a lack of memory is an error. Later, it would kill the process.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let file = File::from(file);
    file.write_all_at(&nonce, 0)?;
    let offer = Offer { process: std::process::id(), descriptor: file.as_raw_fd(), length, nonce };
    Ok((file.into(), offer))
}

/// Opens another rank's memory. Fails if the file is not that memory.
pub(super) fn open(offer: &Offer, ranks: usize) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/fd/{}", offer.process, offer.descriptor);
    let other = |what: &str| io::Error::other(format!("{path} is {what}"));
    // Check before opening, because opening a pipe or a terminal has side effects.
    check(&std::fs::metadata(&path)?, offer).map_err(other)?;
    let options = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
    let file =
        File::options().read(true).write(true).custom_flags(options.cast_signed()).open(&path)?;
    check(&file.metadata()?, offer).map_err(other)?;
    // Without this seal, another process could shorten the file, which would kill this one.
    let seals = rustix::fs::fcntl_get_seals(&file)?;
    let mut nonce = [0; 16];
    file.read_exact_at(&mut nonce, 0)?;
    if nonce != offer.nonce
        || !seals.contains(SealFlags::SHRINK)
        || offer.length != total(ranks) as u64
    {
        return Err(other("another process's"));
    }
    Ok(file.into())
}

fn check(found: &std::fs::Metadata, offer: &Offer) -> Result<(), &'static str> {
    match found {
        found if !found.is_file() || found.len() != offer.length => Err("another file"),
        found if found.uid() != rustix::process::geteuid().as_raw() => Err("another user's"),
        _ => Ok(()),
    }
}

impl Memory {
    /// The memory of `ranks` ranks that are threads of this process, for each of them.
    pub(crate) fn of_this_process(ranks: usize) -> io::Result<Vec<Memory>> {
        let (file, _) = create(ranks)?;
        (0..ranks).map(|own| Memory::map(&file, ranks, own)).collect()
    }

    /// Maps the memory of `ranks` ranks, for the rank with the index `own`.
    pub(super) fn map(file: &OwnedFd, ranks: usize, own: usize) -> io::Result<Memory> {
        let length = total(ranks);
        // Not populated: most groups touch few of the pages, and a page fault for each of those
        // takes less time than to map them all.
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses an address that nothing else uses.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // Before the first round, all slots are free, as after a completed round.
        Ok(Memory {
            base,
            length,
            ranks,
            own,
            slot: slot_length(ranks),
            round: 0,
            is_complete: true,
            passed: vec![Passed::default(); ranks],
        })
    }

    /// The most bytes that a rank can publish in a round.
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// The most bytes for each other rank that a rank can publish in a round: whole cache lines, or
    /// at least whole numbers of any type.
    pub(super) fn share(&self) -> usize {
        let share = self.slot / (self.ranks - 1).max(1);
        let unit = if share < LINE { LARGEST } else { LINE };
        share / unit * unit
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn own(&self) -> usize {
        self.own
    }

    fn place(&self, rank: usize) -> &Place {
        assert!(rank < self.ranks);
        // SAFETY: the places lie within the memory after its first line, at aligned addresses. They
        // consist only of atomics, which other processes may change and for which every value is
        // valid.
        unsafe { &*self.base.add(LINE + rank * size_of::<Place>()).cast::<Place>().as_ptr() }
    }

    /// The address and the length of a rank's slot in a round.
    fn slot_at(&self, rank: usize, round: u32) -> (NonNull<u8>, usize) {
        assert!(rank < self.ranks);
        let index = 2 * rank + (round % 2) as usize;
        // SAFETY: the slots of all ranks lie within the memory, which is as long as `total` says.
        (unsafe { self.base.add(slots_begin(self.ranks) + index * (self.slot + GAP)) }, self.slot)
    }

    /// This rank's slot of the next round, to be filled, but for what it has completed, and all
    /// slots of the current round. A panic between `complete` and `publish` cancels the group, so that
    /// no round begins with completed bytes.
    ///
    /// # Errors
    /// A rank that has not published the current round.
    pub(super) fn next(&mut self) -> Result<(&mut [u8], Slots<'_>), usize> {
        self.slots()?;
        let completed = self.completed_by(self.own);
        let (at, length) = self.slot_at(self.own, self.round.wrapping_add(1));
        // SAFETY: the bytes lie within the memory. All ranks have published the current round, so
        // they have finished with the previous one, which was in this slot. They read the slot
        // again only after this rank publishes the next round, when this borrow has ended, but for
        // the bytes before these, which this rank has completed. The current round uses the other
        // slots.
        let own = unsafe {
            std::slice::from_raw_parts_mut(at.add(completed).as_ptr(), length - completed)
        };
        Ok((own, Slots { memory: self, round: self.round, length }))
    }

    /// Shows the others that the next `length` bytes of [`Memory::next`] are complete.
    pub(super) fn complete(&mut self, length: usize) {
        let completed = self.completed_by(self.own) + length;
        // Slots are shorter than 4 GiB.
        let state = u64::from(self.round.wrapping_add(1)) << 32 | completed as u64;
        // Everything before it is published to those who load it.
        self.place(self.own).completed.store(state, Ordering::Release);
    }

    /// How many bytes of the next round a rank has completed before it publishes the round.
    fn completed_by(&self, rank: usize) -> usize {
        let state = self.place(rank).completed.load(Ordering::Acquire);
        if (state >> 32) as u32 == self.round.wrapping_add(1) {
            (state as u32 as usize).min(self.slot)
        } else {
            0
        }
    }

    /// What all ranks have completed of the next round.
    pub(super) fn completed(&self) -> Slots<'_> {
        let length = (0..self.ranks).map(|rank| self.completed_by(rank)).min().unwrap_or(0);
        Slots { memory: self, round: self.round.wrapping_add(1), length }
    }

    /// Publishes this rank's next slot to all others.
    pub(super) fn publish(&mut self, call: Call) {
        self.round = self.round.wrapping_add(1);
        self.is_complete = self.ranks == 1;
        let place = self.place(self.own);
        place.completed.store(0, Ordering::Relaxed);
        place.calls[(self.round % 2) as usize].store(call);
        // Relaxed, as the slot's bytes: storing the round below publishes everything before it to
        // those who load the round.
        place.processor.store(processor(), Ordering::Relaxed);
        // Sequentially consistent, as in `sleep`: either this rank sees the sleeper, or the sleeper
        // sees the round. Without sleepers, no system call is made.
        place.published.store(self.round, Ordering::SeqCst);
        if place.sleepers.0.load(Ordering::SeqCst) > 0 {
            // If this fails, the sleeper wakes at its own timeout, a little later.
            let _ = futex::wake(&place.published, futex::Flags::empty(), i32::MAX.cast_unsigned());
        }
    }

    /// Returns whether a rank has published the current round.
    pub(super) fn has_published(&self, rank: usize) -> bool {
        let published = self.place(rank).published.load(Ordering::Acquire);
        // The rank may be one round ahead.
        published.wrapping_sub(self.round).cast_signed() >= 0
    }

    /// Returns whether a rank ran on this processor when it last published or posted a message. If
    /// so, it may not run while this rank does.
    pub(super) fn is_on_this_processor(&self, rank: usize) -> bool {
        self.place(rank).processor.load(Ordering::Relaxed) == processor()
    }

    /// Sleeps until a rank publishes the current round, but not longer than `longest`.
    pub(super) fn sleep(&self, rank: usize, longest: Duration) {
        let place = self.place(rank);
        place.sleepers.0.fetch_add(1, Ordering::SeqCst);
        let published = place.published.load(Ordering::SeqCst);
        if published.wrapping_sub(self.round).cast_signed() < 0 {
            let longest = longest.try_into().ok();
            // The system puts this thread to sleep only if the value is still the one read above,
            // so a round in between is not slept through. Woken, interrupted or timed out: the
            // caller checks.
            let _ =
                futex::wait(&place.published, futex::Flags::empty(), published, longest.as_ref());
        }
        place.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// The call that a rank makes in the current round, which it must have published; `None` if it
    /// cannot be read.
    pub(super) fn call(&self, rank: usize) -> Option<Call> {
        self.place(rank).calls[(self.round % 2) as usize].load()
    }

    /// The slots of the current round.
    ///
    /// # Errors
    /// A rank that has not published it.
    pub(super) fn slots(&mut self) -> Result<Slots<'_>, usize> {
        if !self.is_complete
            && let Some(rank) = (0..self.ranks).find(|&rank| !self.has_published(rank))
        {
            return Err(rank);
        }
        self.is_complete = true;
        Ok(Slots { memory: self, round: self.round, length: self.slot })
    }
}

// SAFETY: the memory belongs to this value, whichever thread has it. What other processes change is
// atomic, or a slot that is read only after all ranks have published it.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and nothing borrows from it any longer.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_memory_is_refused() {
        let (file, mut offer) = create(2).unwrap();
        assert!(open(&offer, 2).is_ok());
        assert!(open(&offer, 3).is_err(), "of another number of ranks");
        // A file that becomes shorter kills those who use the rest.
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        offer.nonce[3] ^= 1;
        let error = open(&offer, 2).unwrap_err().to_string();
        assert!(error.ends_with("is another process's"), "{error}");
        drop(file);
        assert!(open(&offer, 2).is_err(), "closed");

        // Opening this pipe would wait for a writer.
        let (reader, _writer) = std::io::pipe().unwrap();
        offer.descriptor = reader.as_raw_fd();
        let error = open(&offer, 2).unwrap_err().to_string();
        assert!(error.ends_with("is another file"), "{error}");
    }

    #[test]
    fn slots_neither_overlap_nor_leave_the_memory() {
        for ranks in [1, 2, 3, 64, 1000] {
            let (file, _) = create(ranks).unwrap();
            let memory = Memory::map(&file, ranks, 0).unwrap();
            let mut before = memory.base.as_ptr() as usize + LINE + ranks * size_of::<Place>();
            for rank in 0..ranks {
                for round in 0..2 {
                    let (at, length) = memory.slot_at(rank, round);
                    let at = at.as_ptr() as usize;
                    assert!(at >= before && at.is_multiple_of(LINE));
                    before = at + length;
                }
            }
            assert!(before <= memory.base.as_ptr() as usize + memory.length);
            assert!(
                memory.length <= MOST + (1 << 20),
                "{ranks} ranks take {} bytes",
                memory.length
            );
        }
    }

    #[test]
    fn the_counter_of_rounds_may_wrap_around() {
        let (file, _) = create(2).unwrap();
        let [mut one, mut two] = [0, 1].map(|own| Memory::map(&file, 2, own).unwrap());
        for memory in [&mut one, &mut two] {
            memory.round = u32::MAX - 1;
            memory.place(memory.own).published.store(u32::MAX - 1, Ordering::SeqCst);
        }
        for round in 0..4_u8 {
            for memory in [&mut one, &mut two] {
                memory.next().unwrap().0[0] = round;
                memory.publish(Call::BARRIER);
            }
            for (memory, other) in [(&mut one, 1), (&mut two, 0)] {
                assert_eq!(memory.slots().unwrap().of(other)[0], round);
            }
        }
        two.publish(Call::BARRIER);
        one.publish(Call::BARRIER);
        one.publish(Call::BARRIER);
        assert!(
            two.has_published(0)
                && !one.has_published(1)
                && one.slots().is_err()
                && one.next().is_err()
        );
    }
}
