//! The cost of a secret: medians of an all-reduce over TCP between two ranks, without a secret and
//! with one.
//!
//! `cargo bench --features collective --bench secret` starts both ranks on one machine. For ranks
//! on two hosts, start `secret --rank 0 HOST 29500 29501` on the host of that name or address, and
//! `secret --rank 1 HOST 29500 29501` on the other. The two variants take turns, so that a busy
//! machine slows both equally.

use std::net::TcpListener;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};

type Failure = Box<dyn std::error::Error>;

/// What `openssl rand -hex 32` prints.
const SECRET: &str = "c01d1a5f3e6a2f0b9d8e7c6b5a49382716f5e4d3c2b1a0918273645546372819";
/// The bytes of a sum, and how many sums a round has. 31,400 bytes are the gradient of the
/// trainer's linear model.
const SUMS: [(usize, usize); 5] =
    [(8, 200), (31_400, 200), (262_144, 40), (1 << 20, 20), (64 << 20, 1)];
/// Rounds of each variant; the first ones are for warming up.
const ROUNDS: usize = 33;
const WARM_UP: usize = 3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => start(),
        ["--rank", rank, master, open, secret] => run(rank, master, open, secret),
        _ => Err("usage: secret".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("secret: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts both ranks.
fn start() -> Result<(), Failure> {
    let free =
        || Ok::<_, Failure>(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string());
    let ports = [free()?, free()?];
    let rank = |rank| {
        Command::new(std::env::current_exe()?)
            .args(["--rank", rank, "127.0.0.1"])
            .args(&ports)
            .spawn()
    };
    let (mut first, mut second) = (rank("0")?, rank("1")?);
    if first.wait()?.success() && second.wait()?.success() {
        Ok(())
    } else {
        Err("a rank failed".into())
    }
}

/// One rank, which is in both groups.
fn run(rank: &str, master: &str, open: &str, secret: &str) -> Result<(), Failure> {
    let connect = |port: &str, token: &str| {
        let vars = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", master),
            ("MASTER_PORT", port),
            ("MPIENV_TOKEN", token),
        ];
        let info = ClusterInfo::from_vars(vars.into_iter().filter(|(_, value)| !value.is_empty()))?;
        Ok::<_, Failure>(
            Group::builder(&info)
                .backend(Backend::Tcp)
                .timeout(Duration::from_secs(60))
                .connect()?,
        )
    };
    let mut groups = [connect(open, "")?, connect(secret, SECRET)?];
    if rank == "0" {
        println!(
            "| bytes | without a secret, us | with a secret, us | ratio |\n| --- | --- | --- | --- |"
        );
    }
    for (bytes, times) in SUMS {
        let mut values = vec![0.5_f32; bytes / 4];
        let mut taken = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for (group, taken) in groups.iter_mut().zip(&mut taken) {
                for _ in 0..times {
                    let begun = Instant::now();
                    group.all_reduce_sum(&mut values)?;
                    if round >= WARM_UP {
                        taken.push(begun.elapsed().as_secs_f64() * 1e6);
                    }
                    values.fill(0.5);
                }
            }
        }
        let [open, secret] = taken.map(|mut taken| {
            taken.sort_by(f64::total_cmp);
            taken[taken.len() / 2]
        });
        if rank == "0" {
            println!("| {bytes} | {open:.1} | {secret:.1} | {:.2} |", secret / open);
        }
    }
    Ok(())
}
