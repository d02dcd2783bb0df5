//! Without control over core binding, there is nothing to release.

pub(crate) struct Unbound;

impl Unbound {
    pub(crate) fn of_this_thread(_is_kept: bool) -> Unbound {
        Unbound
    }
}
