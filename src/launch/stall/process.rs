//! What a worker's process is doing, as far as /proc shows it.

use std::fs;
use std::time::Duration;

use super::sight::Doing;
use super::syscall::Call;

/// The length of a clock tick in /proc, which is the same on all architectures of today.
const TICK: Duration = Duration::from_millis(10);
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
            |call| Call::of(&call).is_some_and(|call| call.is_for_child()),
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
    let stat = Stat::of(process)?;
    Some(TICK * stat.ticks)
}

/// What a process is doing.
#[derive(Debug, PartialEq)]
pub(super) struct Now {
    pub command: String,
    pub doing: Doing,
    pub call: Option<String>,
    pub channel: Option<String>,
}

impl Now {
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
pub(super) fn now(process: u32) -> Option<Now> {
    settled(|| look(process))
}

/// Returns the first look at a process that sleeps, or else what the looks tell.
fn settled(mut look: impl FnMut() -> Option<Now>) -> Option<Now> {
    let mut now = look()?;
    for _ in 1..LOOKS {
        if now.is_settled() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        let next = look()?;
        if next.doing != Doing::Runs {
            now = next;
        }
    }
    Some(now)
}

fn look(process: u32) -> Option<Now> {
    let stat = Stat::of(process)?;
    let call = text(process, "syscall").and_then(|text| Call::of(&text));
    let doing = match stat.state {
        'T' | 't' => Doing::Stopped,
        'D' => Doing::Disk,
        'R' => Doing::Runs,
        'S' if call.as_ref().is_some_and(|call| call.is_sleep) => Doing::Sleeps,
        'S' => Doing::Waits,
        _ => Doing::Unknown,
    };
    Some(Now {
        command: stat.name,
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

/// The parts of `/proc/PID/stat` that matter here.
struct Stat {
    name: String,
    state: char,
    ticks: u32,
}

impl Stat {
    fn of(process: u32) -> Option<Stat> {
        Stat::read(&text(process, "stat")?)
    }

    /// Parses `number (name) state ... utime stime ...`, in which the name may contain anything.
    fn read(stat: &str) -> Option<Stat> {
        let (head, fields) = stat.rsplit_once(") ")?;
        let name = head.split_once(" (")?.1.to_owned();
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u32>().ok();
        let ticks = ticks(11)?.saturating_add(ticks(12)?);
        Some(Stat { name, state: fields.first()?.chars().next()?, ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_look_like_what_follows() {
        let text = "7 (a) Z 1 (b) S 5 6 6 0 -1 4194304 0 0 0 0 250 50 0 0 20 0 1 0 4711 0 0\n";
        let stat = Stat::read(text).unwrap();
        assert_eq!(
            (stat.name.as_str(), stat.state, TICK * stat.ticks),
            ("a) Z 1 (b", 'S', Duration::from_secs(3))
        );
    }

    #[test]
    fn a_process_that_wakes_during_a_look_is_looked_at_again() {
        let now = |doing, channel: Option<&str>| Now {
            command: "rank".to_owned(),
            doing,
            call: Some("futex".to_owned()),
            channel: channel.map(str::to_owned),
        };
        let of = |looks: [Now; 3]| {
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
            match now(process) {
                Some(now) if now.doing == Doing::Sleeps => break process,
                _ => std::thread::yield_now(),
            }
        };
        let now = now(sleeps).unwrap();
        assert_eq!((sleeps != shell.id(), now.command.as_str()), (true, "sleep"));
        assert_eq!(now.call.as_deref(), Some("clock_nanosleep"));
        std::process::Command::new("kill").arg(sleeps.to_string()).status().unwrap();
        shell.wait().unwrap();
    }
}
