//! Medians of the time from the start of `mnist` to the line of its first step: alone and with two ranks.
//!
//! With DATA_PATH it reads the files of that folder, else it draws its digits.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMES: usize = 11;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for (what, arguments) in [("one rank", &["--epochs", "1"][..]), ("two ranks", &["--epochs", "1", "--ranks", "2"])] {
        let mut taken = (0..TIMES).map(|_| measure(arguments)).collect::<Result<Vec<_>, _>>()?;
        taken.sort();
        println!("{what:>9}: {:.3} s to the first step", taken[TIMES / 2].as_secs_f64());
    }
    Ok(())
}

fn measure(arguments: &[&str]) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let line = lines.next().ok_or("no line")??;
    let taken = begun.elapsed();
    if !line.starts_with("epoch: 0, step: 0, ") {
        return Err(line.into());
    }
    // To its end: a run cut off would be heard by its other ranks.
    lines.for_each(drop);
    child.wait()?;
    Ok(taken)
}
