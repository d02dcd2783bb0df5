//! Medians of a sum over TCP on one machine: this model's gradient, a megabyte, 64 MB.

use std::thread;
use std::time::{Duration, Instant};

use mpienv::{Host, Port, Rank};
use mpienv_trainer::collective::Collective;
use mpienv_trainer::collective::tcp::{Place, Tcp};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    for (bytes, times) in [(31_400, 3000), (1 << 20, 300), (64 << 20, 15)] {
        for size in [2, 4] {
            let median = measure(size, bytes / 4, times)?;
            let bus = 2.0 * f64::from(size - 1) / f64::from(size) * bytes as f64 / median.as_secs_f64() / 1e9;
            println!("{bytes:>9} bytes, {size} ranks: {:>9.1} us, {bus:.2} GB/s bus", median.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}

fn measure(size: u32, length: usize, times: usize) -> Result<Duration, Failure> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let port = Port::new(port).ok_or("port 0")?;
    let run = move |index| -> Result<Duration, Failure> {
        let place = Place { host: Host::LOOPBACK, port, default_port: port, token: Vec::new() };
        let mut tcp = Tcp::connect(Rank::new(index, size)?, &place, Duration::from_secs(60))?;
        let mut values = vec![0.5; length];
        let mut taken = Vec::with_capacity(times);
        for _ in 0..times + times / 10 {
            let begun = Instant::now();
            tcp.all_reduce_sum(&mut values)?;
            taken.push(begun.elapsed());
            values.fill(0.5);
        }
        tcp.barrier()?;
        let mut taken = taken.split_off(times / 10);
        taken.sort();
        Ok(taken[times / 2])
    };
    let others: Vec<_> = (1..size).map(|index| thread::spawn(move || run(index))).collect();
    let median = run(0)?;
    for other in others {
        other.join().map_err(|_| "a rank panicked")??;
    }
    Ok(median)
}
