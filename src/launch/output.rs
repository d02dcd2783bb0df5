//! Where the workers' lines go: as they are, with the rank before each, or into files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::launch::error::LaunchError;
use crate::launch::log_file;
use crate::launch::member::Who;

/// Where the workers' stdout and stderr go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// To this process's own, as they are.
    #[default]
    Inherited,
    /// To this process's own, whole lines with `[rank] ` before each.
    ///
    /// A line of more than 16 MiB is cut into several.
    Prefixed,
    /// Into files of a folder, which is made if need be: `rank.K/stdout` and `rank.K/stderr`.
    ///
    /// Files of these names are emptied.
    Folder(PathBuf),
}

/// The longest line that is kept whole, in bytes; no program can fill the memory.
const LONGEST_LINE: u64 = 16 << 20;
/// How many lines of stderr an error tells.
const TAIL_LINES: usize = 3;
/// How much of a line an error tells, in characters.
const TAIL_WIDTH: usize = 300;
/// How much of a file is looked at for its last lines, in bytes.
const TAIL_BYTES: u64 = 8 << 10;
/// How often it is looked whether the last lines have come.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How many looks may find nothing to copy once all workers are gone: an outsider may hold the pipe.
const QUIET_LOOKS: u32 = 1000;

/// Held while a line is written: stdout and stderr may be the same terminal.
static WRITING: Mutex<()> = Mutex::new(());

/// The last lines of a stderr.
type Tail = Arc<Mutex<VecDeque<String>>>;

/// What is captured of one worker.
#[derive(Debug)]
pub(super) enum Captured {
    Nothing,
    Lines { tail: Tail, copies: Vec<Copying> },
    File(PathBuf),
}

/// A thread that copies lines.
#[derive(Debug)]
pub(super) struct Copying {
    thread: JoinHandle<()>,
    reads: Arc<AtomicBool>,
}

impl Copying {
    /// Whether it has nothing to write now.
    fn is_quiet(&self) -> bool {
        self.thread.is_finished() || self.reads.load(Ordering::SeqCst)
    }
}

/// What is read, and whether somebody waits for more of it now.
struct Watched<R> {
    from: R,
    reads: Arc<AtomicBool>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads.store(true, Ordering::SeqCst);
        let read = self.from.read(buffer);
        self.reads.store(false, Ordering::SeqCst);
        read
    }
}

impl Output {
    /// Says where a command's output goes, before it is started.
    pub(super) fn direct(&self, who: Who, command: &mut Command) -> Result<(), LaunchError> {
        match self {
            Output::Inherited if who == Who::Scheduler => {
                // It says what rank 0's worker says too.
                command.stdout(Stdio::null());
            }
            Output::Inherited => {}
            Output::Prefixed => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Output::Folder(_) => {
                let file = |name| {
                    let path = self.file(who, name);
                    log_file::create(&path).map_err(|error| LaunchError::Folder { path, error })
                };
                command.stdout(file("stdout")?).stderr(file("stderr")?);
            }
        }
        Ok(())
    }

    /// Takes over what [`Output::direct`] asked for.
    pub(super) fn capture(&self, who: Who, child: &mut Child) -> Captured {
        match self {
            Output::Inherited => Captured::Nothing,
            Output::Folder(_) => Captured::File(self.file(who, "stderr")),
            Output::Prefixed => {
                let tail = Tail::default();
                let stdout = child.stdout.take().map(|from| spawn(from, io::stdout, who, None));
                let stderr = child.stderr.take().map(|from| spawn(from, io::stderr, who, Some(tail.clone())));
                Captured::Lines { tail, copies: stdout.into_iter().chain(stderr).collect() }
            }
        }
    }

    fn file(&self, who: Who, name: &str) -> PathBuf {
        let folder = match self {
            Output::Folder(folder) => folder.clone(),
            _ => PathBuf::new(),
        };
        folder.join(who.folder()).join(name)
    }
}

impl Captured {
    /// Waits for the last lines of a worker whose group has ended, for as long as their reader takes.
    pub(super) fn finish(&self) {
        let Captured::Lines { copies, .. } = self else { return };
        let mut quiet = 0;
        // Looks are counted and not time: while this process is stopped nobody could have read.
        while quiet < QUIET_LOOKS && !copies.iter().all(|copy| copy.thread.is_finished()) {
            thread::sleep(LOOK_EVERY);
            if copies.iter().all(Copying::is_quiet) {
                quiet += 1;
            }
        }
    }

    /// The last lines of stderr as one line; `None` where they are not known.
    pub(super) fn tail(&self) -> Option<String> {
        match self {
            Captured::Nothing => None,
            Captured::Lines { tail, .. } => Some(join(&tail.lock().unwrap_or_else(PoisonError::into_inner))),
            Captured::File(path) => {
                let mut tail = VecDeque::new();
                // A file that cannot be read is named all the same.
                for line in last_bytes(path).unwrap_or_default().split(|byte| *byte == b'\n') {
                    keep(&mut tail, line);
                }
                let text = join(&tail);
                Some(if text.is_empty() { text } else { format!("{text} ({})", path.display()) })
            }
        }
    }
}

fn last_bytes(path: &PathBuf) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Copies lines in a thread of its own, with the prefix before each.
fn spawn<R, W>(from: R, to: fn() -> W, who: Who, tail: Option<Tail>) -> Copying
where
    R: Read + Send + 'static,
    W: Write + 'static,
{
    let reads = Arc::new(AtomicBool::new(false));
    let from = Watched { from, reads: Arc::clone(&reads) };
    let thread = thread::spawn(move || {
        // Where nobody reads any more the pipe is closed, and the worker learns of it by its next line.
        let _ = copy(BufReader::with_capacity(64 << 10, from), to(), &format!("[{who}] "), tail);
    });
    Copying { thread, reads }
}

fn copy(mut from: impl BufRead, mut to: impl Write, prefix: &str, tail: Option<Tail>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        if from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(tail) = &tail {
            keep(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), &line[prefix.len()..]);
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        let _whole = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(&line)?;
        to.flush()?;
    }
}

/// Adds a line to the last ones, unless it is blank.
fn keep(tail: &mut VecDeque<String>, line: &[u8]) {
    // Of a progress bar the last state counts; a terminal's colours are no words.
    let line = line.trim_ascii().rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
    let start = &line[..line.len().min(4 * TAIL_WIDTH)];
    let text: String = String::from_utf8_lossy(start).chars().filter(|c| !c.is_control()).take(TAIL_WIDTH).collect();
    if text.trim().is_empty() {
        return;
    }
    if tail.len() == TAIL_LINES {
        tail.pop_front();
    }
    tail.push_back(text.trim().to_owned());
}

fn join(tail: &VecDeque<String>) -> String {
    tail.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
}
