//! One rank of the jobs that tests/it/mpi.rs starts: `mpirun -n 4 mpi_rank sums`.

use std::error::Error;
use std::fmt::Debug;
use std::process::{self, Command, ExitCode};
use std::time::Duration;

use mpienv::collective::{Backend, Group};
use mpienv::mpi::{self, Communicator, Hints, World};
use mpienv::{ClusterInfo, Environment, Rank};

/// Longer than the time limit of any test.
const FOR_EVER: Duration = Duration::from_secs(1200);

fn main() -> ExitCode {
    let environment = Environment::current();
    let parts: Vec<_> = std::env::args().skip(1).collect();
    match run(&parts, &environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(parts: &[String], environment: &Environment) -> Result<(), Box<dyn Error>> {
    if parts == ["asks-first"] {
        return asks_first();
    }
    let info = ClusterInfo::from_environment(environment)?;
    let hints = match parts {
        [first, ..] if first == "hints" => Hints::new().one_machine(true).eager_limit(65536),
        _ => Hints::new(),
    };
    let init = || World::init_with(&info, &hints);
    let world = init()?;
    let ranks = world.communicator();
    for part in parts {
        match part.as_str() {
            "hints" => {}
            "sums" => sums(ranks)?,
            "gathers" => gathers(ranks)?,
            "broadcasts" => broadcasts(ranks)?,
            "splits" => splits(ranks)?,
            "parts" => exchanges_parts(ranks)?,
            "bad-root" => bad_root(ranks)?,
            "shorter" => receives_less(ranks)?,
            "longer" => receives_more(ranks),
            "is-killed" => is_killed(ranks)?,
            "hangs" => hangs(world),
            "drops" => return Ok(()),
            "finalizes-late" => return finalizes_late(world, init),
            "fails-alone" => return fails_alone(world),
            "exits" => exits(ranks)?,
            other => return Err(format!("no part {other:?}").into()),
        }
        // In one write, so that the ranks' lines do not mix.
        println!("{part}: {}", ranks.rank());
    }
    world.finalize()?;
    Ok(())
}

/// Asks the launcher for rank 0's host, after which `MPI_Init` would abort this process.
fn asks_first() -> Result<(), Box<dyn Error>> {
    let info = mpienv::ask::read(&ClusterInfo::builder())?;
    println!("{}", World::init(&info).unwrap_err());
    let by = |backend| Group::builder(&info).backend(backend).connect();
    println!("{}", by(Backend::Mpi).unwrap_err());
    println!("{}", by(Backend::Auto)?.describe());
    Ok(())
}

/// 7850 different numbers for each rank, and their sum over the ranks.
fn numbers(rank: Rank) -> (Vec<f32>, Vec<f32>) {
    let (rank, size) = (rank.index(), rank.size());
    let own = (0..7850).map(|i| (i * size + rank) as f32).collect();
    let sum = (0..7850).map(|i| (i * size * size + size * (size - 1) / 2) as f32).collect();
    (own, sum)
}

/// Exchanges parts of a sum and of bytes, with blocking and with nonblocking calls.
fn exchanges_parts(world: &Communicator) -> Result<(), mpi::MpiError> {
    let (own, size) = (world.rank().index(), world.size());
    for length in [0, 1, 7850] {
        let values: Vec<f64> = (0..length * size).map(|i| f64::from(i + own)).collect();
        let expected: Vec<f64> = (length * own..length * (own + 1))
            .map(|i| f64::from(i * size + size * (size - 1) / 2))
            .collect();
        let mut sum = vec![0.0; length as usize];
        world.reduce_scatter_sum(&values, &mut sum)?;
        assert_eq!(sum, expected);
        let sum = world.start_reduce_scatter_sum(values)?.wait()?;
        assert_eq!(sum[..length as usize], expected);

        let bytes = |from: u32, to: u32| vec![(16 * from + to) as u8; length as usize];
        let parts: Vec<u8> = (0..size).flat_map(|to| bytes(own, to)).collect();
        let expected: Vec<u8> = (0..size).flat_map(|from| bytes(from, own)).collect();
        let mut received = vec![0; parts.len()];
        world.all_to_all(&parts, &mut received)?;
        assert!(received == expected, "parts of {length}");
        assert!(world.start_all_to_all(parts)?.wait()? == expected, "parts of {length}");

        let gathered: Vec<u8> = (0..size).flat_map(|from| bytes(from, 0)).collect();
        world.all_gather_into(&bytes(own, 0), &mut received)?;
        assert!(received == gathered, "blocks of {length}");

        let (next, before) = ((own + 1) % size, (own + size - 1) % size);
        let mut received = bytes(0, 0);
        world.send_receive(&bytes(own, next), next, &mut received, before, 1)?;
        assert!(received == bytes(before, own), "a message of {length}");
    }
    let mut most = [f64::from(own), 1.0];
    world.all_reduce_max(&mut most)?;
    let mut least = [f64::from(own + 1)];
    world.all_reduce_min(&mut least)?;
    assert_eq!((most, least), ([f64::from(size - 1), 1.0], [1.0]));

    // In a chain, the first rank gets nothing.
    let (next, before) = (Some(own + 1).filter(|&next| next < size), own.checked_sub(1));
    let mut received = [99];
    world.send_receive(&[own], next, &mut received, before, 1)?;
    assert_eq!(received, [before.unwrap_or(99)]);

    values_travel(world, |rank| f64::from(rank) + 0.5)?;
    values_travel(world, |rank| i64::from(rank) << 40)?;
    values_travel(world, |rank| rank << 20)?;
    values_travel(world, |rank| rank as u16)?;
    // MPI would read or write what follows the memory.
    let (all, mut more) = (vec![0; size as usize], vec![0; size as usize + 1]);
    let refused = [
        world.reduce_scatter_sum(&vec![0.0_f32; size as usize + 1], &mut [0.0]),
        world.all_gather_into(&[0], &mut more),
        world.all_to_all(&all, &mut more),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.to_string().contains("do not divide into"), "{error}");
    }
    Ok(())
}

/// Every call that moves values moves those of a type.
fn values_travel<T: mpi::Value + PartialEq + Debug>(
    world: &Communicator,
    of: fn(u32) -> T,
) -> Result<(), mpi::MpiError> {
    let (rank, size) = (world.rank().index(), world.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let all: Vec<T> = (0..size).map(of).collect();
    let own = [of(rank)];

    let mut received = vec![T::default(); all.len()];
    world.all_gather_into(&own, &mut received)?;
    assert_eq!(received, all);
    assert_eq!(world.start_all_gather(&own)?.wait()?, all);
    let parts = vec![own[0]; all.len()];
    world.all_to_all(&parts, &mut received)?;
    assert_eq!(received, all);
    assert_eq!(world.start_all_to_all(parts)?.wait()?, all);

    let mut of_root = own;
    world.broadcast(&mut of_root, size - 1)?;
    assert_eq!(of_root[0], of(size - 1));
    assert_eq!(world.start_broadcast(own.to_vec(), 0)?.wait()?, [of(0)]);

    let message = world.start_receive(vec![T::default()], before, 7)?;
    let sent = world.start_send(own.to_vec(), next, 7)?;
    assert_eq!(message.wait()?, [of(before)]);
    sent.wait()?;
    world.send_receive(&own, next, &mut received[..1], before, 7)?;
    assert_eq!(received[0], of(before));
    Ok(())
}

fn sums(world: &Communicator) -> Result<(), mpi::MpiError> {
    let (own, sum) = numbers(world.rank());
    let mut values = own.clone();
    world.all_reduce_sum(&mut values)?;
    assert_eq!(values, sum);

    let mut values: Vec<f64> = own.iter().map(|&value| value.into()).collect();
    world.all_reduce_sum(&mut values)?;
    assert!(values.iter().zip(&sum).all(|(&value, &sum)| value == f64::from(sum)));

    world.all_reduce_sum::<f32>(&mut [])?;
    world.barrier()?;

    // Several sums at once, each waited for in a different way.
    let mut tested = world.start_all_reduce_sum(own.clone())?;
    let waited = world.start_all_reduce_sum(own.clone())?;
    let within = world.start_all_reduce_sum(own)?;
    let barrier = world.start_barrier()?;
    while !tested.test()? {}
    assert_eq!(tested.wait()?, sum);
    assert_eq!(waited.wait()?, sum);
    assert_eq!(within.wait_within(FOR_EVER)?, sum);
    barrier.wait_within(FOR_EVER)
}

fn gathers(world: &Communicator) -> Result<(), mpi::MpiError> {
    let block = |rank: Rank| vec![rank.index() as u8; 3];
    let blocks = world.start_all_gather(&block(world.rank()))?.wait()?;
    assert_eq!(blocks, world.rank().all().flat_map(block).collect::<Vec<_>>());

    assert!(world.start_all_gather(&[0_u8; 0])?.wait()?.is_empty());
    assert!(world.all_gather(&[])?.iter().all(Vec::is_empty));

    // Short blocks, blocks of some MB, and those of one length. Rank 0 contributes nothing.
    for (more, each) in [(0, 1000), (0, 1_500_000), (500_000, 0)] {
        let bytes = |rank: Rank| vec![rank.index() as u8; more + each * rank.index() as usize];
        let expected: Vec<_> = world.rank().all().map(bytes).collect();
        assert!(world.all_gather(&bytes(world.rank()))? == expected, "{more} and {each}");
        let all = world.all_gather_within(&bytes(world.rank()), FOR_EVER)?;
        assert!(all == expected, "{more} and {each}");
    }
    Ok(())
}

fn broadcasts(world: &Communicator) -> Result<(), mpi::MpiError> {
    for root in world.rank().all() {
        let sent = format!("from rank {}", root.index()).into_bytes();
        let own = |is_root| if is_root { sent.clone() } else { vec![0; sent.len()] };
        let mut bytes = own(root == world.rank());
        world.broadcast(&mut bytes, root.index())?;
        assert_eq!(bytes, sent);
        let bytes = world.start_broadcast(own(root == world.rank()), root.index())?.wait()?;
        assert_eq!(bytes, sent);
    }
    world.broadcast(&mut [0_u8; 0], 0)?;
    assert!(world.start_broadcast(Vec::<u8>::new(), 0)?.wait()?.is_empty());
    Ok(())
}

/// Even and odd ranks, each in reverse order.
fn splits(world: &Communicator) -> Result<(), Box<dyn Error>> {
    let (rank, size) = (world.rank().index(), world.size());
    let part: Communicator = world.split(rank % 2, size - rank)?;
    let mut members: Vec<_> = (0..size).filter(|other| other % 2 == rank % 2).collect();
    members.reverse();
    assert_eq!(part.size() as usize, members.len());
    assert_eq!(members[part.rank().index() as usize], rank);
    let mut sum = [rank as f32];
    part.all_reduce_sum(&mut sum)?;
    assert_eq!(sum[0], members.iter().sum::<u32>() as f32);
    // A part can also be split, and its errors are returned as well.
    let alone = part.split(part.rank().index(), 0)?;
    assert_eq!(alone.rank(), Rank::ALONE);
    assert!(matches!(part.split(1 << 31, 0), Err(mpi::MpiError::TooLarge { .. })));
    // A started sum outlives its communicator.
    let started = world.split(rank % 2, 0)?.start_all_reduce_sum(vec![rank as f32; 5])?;
    assert_eq!(started.wait()?, [sum[0]; 5]);
    Ok(())
}

fn bad_root(world: &Communicator) -> Result<(), mpi::MpiError> {
    let size = world.size();
    let part = world.split(0, 0)?;
    for ranks in [world, &part] {
        let error = ranks.broadcast(&mut [0; 8], size).unwrap_err();
        assert!(matches!(error, mpi::MpiError::Call { call: "MPI_Bcast", .. }), "{error:?}");
        println!("{error}");
    }
    println!("{}", world.start_send(vec![1_u8], size, 0).unwrap_err());
    // Every rank sends 16 bytes to the next, which has room for 8, and then finalizes MPI.
    let (next, before) =
        ((world.rank().index() + 1) % size, (world.rank().index() + size - 1) % size);
    let sent = world.start_send(vec![1_u8; 16], next, 0)?;
    let received = world.start_receive(vec![9_u8; 8], before, 0)?;
    println!("{}", received.wait_within(FOR_EVER).unwrap_err());
    sent.wait().map(drop)
}

/// Every rank sends 4 bytes to the next, which has room for 8.
fn receives_less(world: &Communicator) -> Result<(), mpi::MpiError> {
    let (own, size) = (world.rank().index(), world.size());
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    type Waits = fn(mpi::Request<Vec<u8>>) -> Result<(), mpi::MpiError>;
    let waits: [Waits; 3] = [
        |request| request.wait().map(drop),
        |request| request.wait_within(FOR_EVER).map(drop),
        |mut request| {
            while !request.test()? {}
            Ok(())
        },
    ];
    for wait in waits {
        let sent = world.start_send(vec![1_u8; 4], next, 0)?;
        let received = world.start_receive(vec![9; 8], before, 0)?;
        println!("{}", wait(received).unwrap_err());
        sent.wait()?;
    }
    println!("{}", world.send_receive(&[1_u8; 4], next, &mut [9; 8], before, 0).unwrap_err());
    Ok(())
}

/// Every rank sends 10,000 bytes to the next, which has room for 10.
fn receives_more(world: &Communicator) {
    let (own, size) = (world.rank().index(), world.size());
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    let mut room = [9; 10_000];
    let (received, behind) = room.split_at_mut(10);
    println!("{}", world.send_receive(&[1_u8; 10_000], next, received, before, 0).unwrap_err());
    assert!(behind.iter().all(|&byte| byte == 9));
}

fn finalizes_late(
    world: World,
    init: impl Fn() -> Result<World, mpi::MpiError>,
) -> Result<(), Box<dyn Error>> {
    assert_eq!(init().unwrap_err(), mpi::MpiError::AlreadyInitialized);
    let ranks = world.communicator();
    let started = ranks.start_barrier()?;
    let part = ranks.split(0, 0)?;
    started.wait()?;
    world.finalize()?;
    assert_eq!(part.barrier(), Err(mpi::MpiError::Finalized));
    assert_eq!(init().unwrap_err(), mpi::MpiError::AlreadyInitialized);
    Ok(())
}

fn signal_self(signal: &str) {
    Command::new("kill").args([signal, &process::id().to_string()]).status().unwrap();
}

/// The last rank stops before the second sum; the others abort the job.
fn hangs(world: World) -> ! {
    let ranks = world.communicator();
    let sum =
        ranks.start_all_reduce_sum(vec![1.0_f32; 7850]).and_then(|sum| sum.wait_within(FOR_EVER));
    assert_eq!(sum.unwrap()[0], ranks.size() as f32);
    if ranks.rank().index() + 1 == ranks.size() {
        signal_self("-STOP");
    }
    let received = ranks.start_receive(vec![0; 8], ranks.size() - 1, 0).unwrap();
    let late = received.wait_within(Duration::from_millis(50)).unwrap_err();
    let sum = ranks.start_all_reduce_sum(vec![1.0_f32; 7850]).unwrap();
    let error = sum.wait_within(Duration::from_millis(500)).unwrap_err();
    // MPI keeps the memory forever, so nothing can be finalized.
    // In one write: the lines of several ranks must not mix.
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("{late}\n{error}\n").as_bytes());
    world.abort(3);
}

/// The last rank is killed; the others wait for it in a sum.
fn is_killed(world: &Communicator) -> Result<(), Box<dyn Error>> {
    world.barrier()?;
    if world.rank().index() + 1 == world.size() {
        signal_self("-KILL");
    }
    loop {
        world.all_reduce_sum(&mut [1.0_f32; 7850])?;
    }
}

/// The last rank exits as if all was well, and the others wait for it in a sum.
#[expect(clippy::disallowed_methods, reason = "a rank that drops nothing is what is tested")]
fn exits(world: &Communicator) -> Result<(), Box<dyn Error>> {
    if world.rank().index() + 1 == world.size() {
        std::process::exit(0);
    }
    world.all_reduce_sum(&mut [1.0_f32; 7850])?;
    Err("a sum without the last rank".into())
}

/// The last rank fails with its own error, and leaves while the others wait for it.
fn fails_alone(world: World) -> Result<(), Box<dyn Error>> {
    let ranks = world.communicator();
    if ranks.rank().index() + 1 == ranks.size() {
        let error = world.finalize_within(Duration::from_millis(500)).unwrap_err();
        assert!(matches!(error, mpi::MpiError::TimedOut { .. }), "{error:?}");
        return Err(error.into());
    }
    ranks.all_reduce_sum(&mut [1.0_f32; 7850])?;
    Err("a sum without the last rank".into())
}
