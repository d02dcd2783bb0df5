//! Measures the samples per second of `mnist` with one rank and over each transport, in rounds that
//! run each once, and how long two cores take to exchange a cache line, which decides what two ranks
//! can gain.
//!
//! If DATA_PATH names a folder, `mnist` reads its files. Otherwise, it draws digits.

#[path = "../../../sharding/tests/support/launcher.rs"]
mod launcher;
#[path = "../../../../tests/support/port.rs"]
mod port;
#[path = "../../../../tests/support/tool.rs"]
#[expect(dead_code, reason = "the command of mpienv is not run")]
mod tool;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use launcher::job;
use tool::{inherited, is_there};

const ROUNDS: usize = 7;
const EPOCHS: usize = 20;
const MNIST: &str = env!("CARGO_BIN_EXE_mnist");

/// A counter on two cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU32);

fn main() {
    let local = |words: &[&str]| {
        let mut command = Command::new(MNIST);
        command.args(words);
        command
    };
    let mut jobs = vec![
        ("none", 1, local(&[])),
        ("shared memory", 2, local(&["--ranks", "2"])),
        ("TCP", 2, local(&["--ranks", "2", "--backend", "tcp"])),
        ("shared memory", 4, local(&["--ranks", "4"])),
    ];
    if is_there("mpirun") {
        let mpirun = |backend| {
            let mut command = job(Path::new("mpirun"), &[], 2, MNIST);
            command.args(["--backend", backend]);
            command
        };
        jobs.push(("shared memory, mpirun", 2, mpirun("auto")));
        if cfg!(feature = "mpi") {
            jobs.push(("MPI", 2, mpirun("mpi")));
        }
    }
    for (.., command) in &mut jobs {
        command.args(["--epochs", &EPOCHS.to_string()]);
    }
    let (mut rates, mut exchanges) = (vec![Vec::new(); jobs.len()], Vec::new());
    for _ in 0..ROUNDS {
        exchanges.push(exchange().as_secs_f64() * 1e9);
        for ((.., command), rates) in jobs.iter_mut().zip(&mut rates) {
            rates.push(samples_per_second(command));
        }
    }
    let exchanges = sorted(exchanges);
    println!(
        "Two cores exchange a cache line in {:.0} ns ({:.0} to {:.0}).\n",
        exchanges[ROUNDS / 2],
        exchanges[0],
        exchanges[ROUNDS - 1]
    );
    println!("| transport | ranks | samples/s | lowest to highest, millions | times one rank |");
    println!("| --- | --- | --- | --- | --- |");
    let ratios = |rates: &[f64], one: &[f64]| -> Vec<f64> {
        sorted(rates.iter().zip(one).map(|(rate, one)| rate / one).collect())
    };
    for ((transport, ranks, _), of_rounds) in jobs.iter().zip(&rates) {
        let ratio = ratios(of_rounds, &rates[0]);
        let rate = sorted(of_rounds.clone());
        println!(
            "| {transport} | {ranks} | {:.0} | {:.2} to {:.2} | {:.2} ({:.2} to {:.2}) |",
            rate[ROUNDS / 2],
            rate[0] / 1e6,
            rate[ROUNDS - 1] / 1e6,
            ratio[ROUNDS / 2],
            ratio[0],
            ratio[ROUNDS - 1]
        );
    }
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The median of the epochs of a run, but for the first.
fn samples_per_second(command: &mut Command) -> f64 {
    command.envs(inherited("DATA_PATH").map(|folder| ("DATA_PATH", folder)));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let rates = lines.lines().filter_map(|line| {
        let (rest, _) = line.split_once(" samples/s")?;
        rest.rsplit(' ').next()?.parse().ok()
    });
    let rates = sorted(rates.skip(1).collect());
    assert_eq!(rates.len(), EPOCHS - 1, "{lines}");
    rates[rates.len() / 2]
}

/// How long a round trip of a cache line between two threads takes.
fn exchange() -> Duration {
    const TIMES: u32 = 200_000;
    let lines = [Line(AtomicU32::new(0)), Line(AtomicU32::new(0))];
    let wait = |line: &Line, turn: u32| {
        while line.0.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=TIMES {
                wait(&lines[0], turn);
                lines[1].0.store(turn, Ordering::Release);
            }
        });
        let begun = Instant::now();
        for turn in 1..=TIMES {
            lines[0].0.store(turn, Ordering::Release);
            wait(&lines[1], turn);
        }
        begun.elapsed() / TIMES
    })
}
