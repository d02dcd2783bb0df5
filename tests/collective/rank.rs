//! One rank of the jobs that tests/it/collective.rs starts: it sums until it or another rank is
//! killed.
//!
//! `collective_rank NUMBERS TIMEOUT`, in seconds.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};

fn main() -> ExitCode {
    let info = ClusterInfo::from_env().unwrap();
    let [count, timeout] = [1, 2].map(|word| std::env::args().nth(word).unwrap().parse().unwrap());
    let builder =
        Group::builder(&info).backend(Backend::SharedMemory).timeout(Duration::from_secs(timeout));
    let mut group = match builder.connect() {
        Ok(group) => group,
        Err(error) => return failed(&error),
    };
    println!("{}", group.describe());
    let mut sums = 0;
    let mut values = vec![1.0_f32; count as usize];
    loop {
        if let Err(error) = group.all_reduce_sum(&mut values) {
            return failed(&error);
        }
        values.fill(1.0);
        sums += 1;
        if sums == 10 {
            println!("sums");
            std::io::stdout().flush().unwrap();
        }
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(3)
}
