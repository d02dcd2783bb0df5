//! Which process this is, so that a forked child does not use what belongs to its parent.

/// The process that owns connections, memory or a library's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// This process.
    #[must_use]
    pub fn current() -> Owner {
        Owner(id())
    }

    /// Returns whether this process is the owner, and not a child that was forked from it.
    #[must_use]
    pub fn is_here(self) -> bool {
        id() == self.0
    }

    /// The process's ID.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }
}

/// Returns the ID of this process from memory: asking the system takes as long as a fifth of a
/// small sum.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "memory that the system clears when the process forks")]
fn id() -> u32 {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    /// The ID of this process, or 0 if it was not read since the process began. `None` if the
    /// system cannot clear it.
    static ID: LazyLock<Option<&'static AtomicU32>> = LazyLock::new(|| {
        const PAGE: usize = 4096;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the system chooses an address that nothing else uses. The memory is never
        // unmapped.
        let page = unsafe { mmap_anonymous(anywhere, PAGE, access, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: the memory is that of the line above, of whole pages, and nothing refers to it
        // yet.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: the memory is aligned, zeroed, as long as this process, and only used as this
        // atomic.
        Some(unsafe { &*page.cast::<AtomicU32>() })
    });

    let Some(cached) = *ID else { return std::process::id() };
    match cached.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            cached.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

#[cfg(not(target_os = "linux"))]
use std::process::id;

#[cfg(test)]
mod tests {
    #[test]
    fn the_cached_id_is_that_of_the_process() {
        assert_eq!([super::id(), super::id()], [std::process::id(); 2]);
    }
}
