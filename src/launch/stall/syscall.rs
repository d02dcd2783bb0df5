//! The names of the system calls in which programs wait.

/// Numbers and names. A call that is not here has its number as its name.
#[cfg(target_arch = "x86_64")]
const CALLS: &[(u64, &str)] = &[
    (0, "read"),
    (1, "write"),
    (7, "poll"),
    (16, "ioctl"),
    (17, "pread64"),
    (18, "pwrite64"),
    (19, "readv"),
    (20, "writev"),
    (23, "select"),
    (24, "sched_yield"),
    (34, "pause"),
    (35, "nanosleep"),
    (42, "connect"),
    (43, "accept"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (61, "wait4"),
    (72, "fcntl"),
    (73, "flock"),
    (74, "fsync"),
    (75, "fdatasync"),
    (128, "rt_sigtimedwait"),
    (130, "rt_sigsuspend"),
    (202, "futex"),
    (230, "clock_nanosleep"),
    (232, "epoll_wait"),
    (247, "waitid"),
    (257, "openat"),
    (270, "pselect6"),
    (271, "ppoll"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (299, "recvmmsg"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
    (449, "futex_waitv"),
];
/// The numbers that most other architectures share.
#[cfg(not(target_arch = "x86_64"))]
const CALLS: &[(u64, &str)] = &[
    (22, "epoll_pwait"),
    (25, "fcntl"),
    (29, "ioctl"),
    (32, "flock"),
    (56, "openat"),
    (63, "read"),
    (64, "write"),
    (65, "readv"),
    (66, "writev"),
    (67, "pread64"),
    (68, "pwrite64"),
    (72, "pselect6"),
    (73, "ppoll"),
    (82, "fsync"),
    (83, "fdatasync"),
    (95, "waitid"),
    (98, "futex"),
    (101, "nanosleep"),
    (115, "clock_nanosleep"),
    (124, "sched_yield"),
    (133, "rt_sigsuspend"),
    (137, "rt_sigtimedwait"),
    (202, "accept"),
    (203, "connect"),
    (206, "sendto"),
    (207, "recvfrom"),
    (211, "sendmsg"),
    (212, "recvmsg"),
    (242, "accept4"),
    (243, "recvmmsg"),
    (260, "wait4"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
    (449, "futex_waitv"),
];

/// A system call in which a thread is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub name: String,
    /// Whether it ends only with the time: it waits for no other process.
    pub is_sleep: bool,
}

impl Call {
    /// Parses `/proc/PID/syscall`, if the thread is in a system call.
    pub(super) fn of(text: &str) -> Option<Call> {
        let mut words = text.split_ascii_whitespace();
        // `running`, or -1 if it is blocked elsewhere in the kernel.
        let number: u64 = words.next()?.parse().ok()?;
        let known = CALLS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
        let name = known.map_or_else(|| format!("system call {number}"), str::to_owned);
        let arguments: Vec<&str> = words.collect();
        let is_zero = |index: usize| arguments.get(index) == Some(&"0x0");
        let is_sleep = match name.as_str() {
            "nanosleep" | "clock_nanosleep" | "pause" => true,
            // Without files, these wait for the time alone.
            "select" | "pselect6" => is_zero(0),
            "poll" | "ppoll" => is_zero(1),
            _ => false,
        };
        Some(Call { name, is_sleep })
    }

    /// Returns whether it waits for a child process, as shells do.
    pub(super) fn is_for_child(&self) -> bool {
        matches!(self.name.as_str(), "wait4" | "waitid")
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_name_and_one_without_files_is_a_sleep() {
        let of = |text: &str| Call::of(text).map(|call| (call.name, call.is_sleep));
        let call = |name: &str, is_sleep| Some((name.to_owned(), is_sleep));
        assert_eq!(of("202 0x7f 0x189 0x0 0x0 0x0 0xff 0x7ffe 0x7f00\n"), call("futex", false));
        assert_eq!(
            of("230 0x0 0x0 0x7f 0x7f 0x0 0x0 0x7ffe 0x7f00\n"),
            call("clock_nanosleep", true)
        );
        assert_eq!(of("23 0x0 0x0 0x0 0x0 0x7f 0x0 0x7ffe 0x7f00\n"), call("select", true));
        assert_eq!(of("7 0x7f 0x1 0x64 0x0 0x7f 0x0 0x7ffe 0x7f00\n"), call("poll", false));
        assert_eq!(of("999 0x0\n"), call("system call 999", false));
        assert_eq!((of("running\n"), of("-1 0x7ffe 0x7f00\n"), of("")), (None, None, None));
    }
}
