//! Which process this is, so that a forked child does not use what belongs to its parent.

#[cfg_attr(not(all(target_os = "linux", feature = "system")), path = "process/id_of_system.rs")]
mod id;

use self::id::id;

/// The process that owns connections, memory or a library's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// This process.
    pub fn current() -> Owner {
        Owner(id())
    }

    /// Returns whether this process is the owner, and not a child that was forked from it.
    pub fn is_here(self) -> bool {
        id() == self.0
    }

    /// The process's ID.
    pub fn id(self) -> u32 {
        self.0
    }
}
