//! What a worker's process is doing, as far as /proc shows it.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Doing;
use crate::process::stat_fields;

/// The length of a clock tick in /proc, which is the same on all architectures of today.
const TICK_MILLISECONDS: u64 = 10;
/// How many shells may wait for each other until one waits for the program.
const DEEPEST: usize = 8;
/// How often a process that was awake during the first look is looked at again: one that waits may
/// have woken for a moment.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// Returns the process that does the work of a worker: a shell that waits for its only child does
/// nothing.
pub(super) fn at_work(worker: u32) -> u32 {
    let mut process = worker;
    for _ in 0..DEEPEST {
        let waits = text(process, "syscall").map_or_else(
            || wait_channel(process).as_deref() == Some("do_wait"),
            |call| Call::of(&call).is_some_and(|call| ["wait4", "waitid"].contains(&&*call.name)),
        );
        let children = if waits { children(process) } else { Vec::new() };
        let [child] = children[..] else { break };
        process = child;
    }
    process
}

fn children(process: u32) -> Vec<u32> {
    let text = text(process, &format!("task/{process}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns the CPU time that all threads of a process have used.
pub(super) fn cpu_time(process: u32) -> Option<Duration> {
    cpu_time_of(&text(process, "stat")?)
}

/// Parses `number (name) state ... utime stime ...`.
fn cpu_time_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat_fields(stat)?;
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = ticks(11)?.saturating_add(ticks(12)?);
    Some(Duration::from_millis(ticks.saturating_mul(TICK_MILLISECONDS)))
}

/// What a process is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessState {
    pub command: String,
    pub doing: Doing,
    /// The system call in which its main thread is.
    pub call: Option<String>,
    /// The function of the kernel in which its main thread waits.
    pub channel: Option<String>,
}

impl ProcessState {
    /// Returns where its main thread is: `waiting in futex (futex_do_wait)`.
    pub(super) fn activity(&self) -> String {
        let mut activity = self.doing.to_string();
        if self.doing == Doing::Stopped || self.doing == Doing::Runs {
            return activity;
        }
        if let Some(call) = &self.call {
            activity += &format!(" in {call}");
        }
        if let Some(channel) = &self.channel {
            activity += &format!(" ({channel})");
        }
        activity
    }

    /// Whether it slept during the whole look: a process that wakes in between has a state, but no
    /// wait channel.
    fn is_settled(&self) -> bool {
        match self.doing {
            Doing::Runs => false,
            Doing::Waits | Doing::Sleeps => self.call.is_some() && self.channel.is_some(),
            Doing::Unknown | Doing::Disk | Doing::Stopped => true,
        }
    }
}

/// Returns what the main thread of a process is doing, or `None` if the process is not visible.
pub(super) fn state_of(process: u32) -> Option<ProcessState> {
    settled(|| observe(process))
}

/// Returns the first look at a process that sleeps, or else what the looks tell.
fn settled(mut observe: impl FnMut() -> Option<ProcessState>) -> Option<ProcessState> {
    let mut now = observe()?;
    for _ in 1..LOOKS {
        if now.is_settled() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        let next = observe()?;
        if next.doing != Doing::Runs {
            now = next;
        }
    }
    Some(now)
}

fn observe(process: u32) -> Option<ProcessState> {
    let stat = text(process, "stat")?;
    let (command, fields) = stat_fields(&stat)?;
    let call = text(process, "syscall").and_then(|text| Call::of(&text));
    let doing = match *fields.first()? {
        "T" | "t" => Doing::Stopped,
        "D" => Doing::Disk,
        "R" => Doing::Runs,
        "S" if call.as_ref().is_some_and(|call| call.is_sleep) => Doing::Sleeps,
        "S" => Doing::Waits,
        _ => Doing::Unknown,
    };
    Some(ProcessState {
        command: command.to_owned(),
        doing,
        call: call.map(|call| call.name),
        channel: wait_channel(process),
    })
}

/// Returns the function of the kernel in which a process waits.
fn wait_channel(process: u32) -> Option<String> {
    text(process, "wchan").filter(|name| !name.is_empty() && name != "0")
}

fn text(process: u32, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{process}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names of calls, their numbers on x86_64, and those that most other architectures share. A
/// call that is not here has its number as its name.
const CALLS: [(&str, u64, u64); 38] = [
    ("read", 0, 63),
    ("write", 1, 64),
    ("poll", 7, NONE),
    ("ioctl", 16, 29),
    ("pread64", 17, 67),
    ("pwrite64", 18, 68),
    ("readv", 19, 65),
    ("writev", 20, 66),
    ("select", 23, NONE),
    ("sched_yield", 24, 124),
    ("pause", 34, NONE),
    ("nanosleep", 35, 101),
    ("connect", 42, 203),
    ("accept", 43, 202),
    ("sendto", 44, 206),
    ("recvfrom", 45, 207),
    ("sendmsg", 46, 211),
    ("recvmsg", 47, 212),
    ("wait4", 61, 260),
    ("fcntl", 72, 25),
    ("flock", 73, 32),
    ("fsync", 74, 82),
    ("fdatasync", 75, 83),
    ("rt_sigtimedwait", 128, 137),
    ("rt_sigsuspend", 130, 133),
    ("futex", 202, 98),
    ("clock_nanosleep", 230, 115),
    ("epoll_wait", 232, NONE),
    ("waitid", 247, 95),
    ("openat", 257, 56),
    ("pselect6", 270, 72),
    ("ppoll", 271, 73),
    ("epoll_pwait", 281, 22),
    ("accept4", 288, 242),
    ("recvmmsg", 299, 243),
    ("io_uring_enter", 426, 426),
    ("epoll_pwait2", 441, 441),
    ("futex_waitv", 449, 449),
];
/// The number of a call that these architectures do not have.
const NONE: u64 = u64::MAX;

/// A system call in which a thread is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    /// Whether it ends only with the time: it waits for no other process.
    is_sleep: bool,
}

impl Call {
    /// Parses `/proc/PID/syscall`, if the thread is in a system call.
    fn of(text: &str) -> Option<Call> {
        let mut words = text.split_ascii_whitespace();
        // `running`, or -1 if it is blocked elsewhere in the kernel.
        let number: u64 = words.next()?.parse().ok()?;
        let known = CALLS.iter().find(|(_, x86_64, other)| {
            number == if cfg!(target_arch = "x86_64") { *x86_64 } else { *other }
        });
        let name =
            known.map_or_else(|| format!("system call {number}"), |known| known.0.to_owned());
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_look_like_what_follows() {
        let text = "7 (a) Z 1 (b) S 5 6 6 0 -1 4194304 0 0 0 0 250 50 0 0 20 0 1 0 4711 0 0\n";
        let (name, fields) = stat_fields(text).unwrap();
        assert_eq!((name, fields[0]), ("a) Z 1 (b", "S"));
        assert_eq!(cpu_time_of(text), Some(Duration::from_secs(3)));
        // 128 threads for a week.
        let week = 128 * 7 * 24 * 3600;
        let text = format!("42 (x) R {} {} 0 0 0", "1 ".repeat(10).trim(), week * 100);
        assert_eq!(cpu_time_of(&text), Some(Duration::from_secs(week)));
    }

    #[test]
    fn a_process_that_wakes_during_a_look_is_looked_at_again() {
        let now = |doing, channel: Option<&str>| ProcessState {
            command: "rank".to_owned(),
            doing,
            call: Some("futex".to_owned()),
            channel: channel.map(str::to_owned),
        };
        let of = |looks: [ProcessState; 3]| {
            let mut looks = looks.into_iter().chain((3..LOOKS).map(|_| now(Doing::Runs, None)));
            settled(|| looks.next())
        };
        let runs = || now(Doing::Runs, None);
        let woke = || now(Doing::Waits, None);
        let waits = || now(Doing::Waits, Some("futex_do_wait"));
        assert_eq!(of([woke(), waits(), runs()]), Some(waits()));
        assert_eq!(of([runs(), woke(), waits()]), Some(waits()));
        assert_eq!(of([woke(), runs(), runs()]), Some(woke()));
        assert_eq!(of([runs(), runs(), runs()]), Some(runs()));
        // It has ended.
        assert_eq!(settled(|| None), None);
    }

    #[test]
    fn a_shell_that_waits_for_its_only_child_stands_for_the_child() {
        let script = "sleep 600; true";
        let mut shell = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        // Until the shell has started it and waits.
        let sleeps = loop {
            let process = at_work(shell.id());
            match state_of(process) {
                Some(now) if now.doing == Doing::Sleeps => break process,
                _ => std::thread::yield_now(),
            }
        };
        let now = state_of(sleeps).unwrap();
        assert_eq!((sleeps != shell.id(), now.command.as_str()), (true, "sleep"));
        assert_eq!(now.call.as_deref(), Some("clock_nanosleep"));
        std::process::Command::new("kill").arg(sleeps.to_string()).status().unwrap();
        shell.wait().unwrap();
    }

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
