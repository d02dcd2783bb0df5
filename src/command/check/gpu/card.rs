//! This rank's GPU: what it is, what it does by itself, and its part in the sums of all ranks.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpienv_ask::seam::entries;
use mpienv_gpu::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg as _,
};
use mpienv_gpu::{Communicator, Device, GpuError};

use super::{Alone, DeviceReport};
use crate::collective::Group;
use crate::{ClusterInfo, printable};

/// The kernel of the matrix product.
const PRODUCT: &str = include_str!("product.cu");
/// The side of the matrices, and of the tiles that a block computes.
const SIDE: usize = 256;
const TILE: u32 = 16;
/// The most products in one launch, which keep a large GPU busy.
const MOST_PRODUCTS: u32 = 256;
/// The least and the most bytes that are copied at once.
const COPIED: (usize, usize) = (1 << 20, 256 << 20);
/// A launch or copy that takes as long is long enough to be measured.
const LONG_ENOUGH: Duration = Duration::from_millis(5);
/// How often each is measured. The fastest counts.
const TIMES: usize = 5;
/// The longest time that NCCL gets: less than that after which the ranks give each other up.
const LONGEST: Duration = Duration::from_secs(100);

/// The error of a call to the driver, which was made to `purpose`.
fn driver(purpose: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| GpuError::from_driver(purpose, error)
}

/// A rank's GPU.
pub(super) struct Card {
    pub(super) report: DeviceReport,
    stream: Arc<CudaStream>,
    /// How long NCCL may take.
    timeout: Duration,
}

impl Card {
    /// Opens the device of this rank.
    pub(super) fn open(info: &ClusterInfo, timeout: Duration) -> Result<Card, GpuError> {
        let device = Device::of_rank(info)?;
        // Before this process takes some.
        let memory_free = device.memory_free()?;
        let context = mpienv_gpu::context(&device)?;
        let stream = context.new_stream().map_err(driver("open the device"))?;
        let (major, minor) = device.compute_capability;
        let report = DeviceReport {
            ordinal: device.ordinal,
            name: device.name,
            uuid: device.uuid,
            pci_address: device.pci_address,
            numa_node: device.numa_node,
            memory_free,
            memory_total: device.memory_total,
            compute_capability: format!("{major}.{minor}"),
            driver: device.driver,
        };
        Ok(Card { report, stream, timeout: timeout.min(LONGEST) })
    }

    /// Multiplies matrices and copies memory, and compares every number.
    pub(super) fn alone(&self) -> Result<Alone, GpuError> {
        let (products_per_s, wrong_product) = self.multiply()?;
        let (copied_per_s, wrong_copy) = self.copy()?;
        Ok(Alone { products_per_s, copied_per_s, wrong: wrong_product.or(wrong_copy) })
    }

    fn multiply(&self) -> Result<(f64, Option<String>), GpuError> {
        let wrong = driver("multiply matrices");
        let module = mpienv_gpu::compile(self.stream.context(), PRODUCT)?;
        let kernel = module.load_function("product").map_err(&wrong)?;
        // Whole numbers, whose products and sums `f32` holds exactly.
        let left: Vec<f32> = (0..SIDE * SIDE).map(|at| (at % 7) as f32).collect();
        let right: Vec<f32> = (0..SIDE * SIDE).map(|at| (at / 3 % 5) as f32).collect();
        let left_there = self.stream.clone_htod(&left).map_err(&wrong)?;
        let right_there = self.stream.clone_htod(&right).map_err(&wrong)?;
        let mut count = 1;
        let mut result = loop {
            let numbers = SIDE * SIDE * count as usize;
            let mut result = self.stream.alloc_zeros::<f32>(numbers).map_err(&wrong)?;
            let matrices = (&left_there, &right_there, &mut result);
            let taken = self.timed(|| self.launch(&kernel, matrices, count))?;
            if taken >= LONG_ENOUGH || count >= MOST_PRODUCTS {
                break result;
            }
            count = (count * 4).min(MOST_PRODUCTS);
        };
        let fastest = self.fastest(|| {
            let matrices = (&left_there, &right_there, &mut result);
            self.launch(&kernel, matrices, count)
        })?;
        let found = self.stream.clone_dtoh(&result).map_err(&wrong)?;
        let expected = product(&left, &right);
        let of_one = |(at, found): (usize, &f32)| {
            let expected = expected[at % expected.len()];
            (*found != expected).then(|| {
                format!("number {at} of a matrix product is {found} in place of {expected}")
            })
        };
        let wrong = found.iter().enumerate().find_map(of_one);
        let multiply_adds = f64::from(count) * (SIDE * SIDE * SIDE) as f64;
        Ok((multiply_adds / fastest, wrong))
    }

    #[expect(unsafe_code, reason = "the kernel gets what its source declares")]
    fn launch(
        &self,
        kernel: &CudaFunction,
        (left, right, result): (&CudaSlice<f32>, &CudaSlice<f32>, &mut CudaSlice<f32>),
        count: u32,
    ) -> Result<(), DriverError> {
        let (side, tiles) = (SIDE as i32, SIDE as u32 / TILE);
        let config = LaunchConfig {
            grid_dim: (tiles, tiles, count),
            block_dim: (TILE, TILE, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = self.stream.launch_builder(kernel);
        let launch = launch.arg(left).arg(right).arg(result).arg(&side);
        // SAFETY: the kernel takes three matrices and their side. The first two have `side` squared
        // numbers, and the result as many for each block in the third direction.
        unsafe { launch.launch(config) }.map(|_| ())
    }

    fn copy(&self) -> Result<(f64, Option<String>), GpuError> {
        let wrong = driver("copy memory");
        let most = usize::try_from(self.report.memory_free / 8).unwrap_or(COPIED.1);
        let mut bytes = COPIED.0;
        loop {
            let numbers: Vec<u32> =
                (0..bytes as u32 / 4).map(|at| at.wrapping_mul(2_654_435_761)).collect();
            let from = self.stream.clone_htod(&numbers).map_err(&wrong)?;
            let mut into = self.stream.alloc_zeros::<u32>(numbers.len()).map_err(&wrong)?;
            let mut copy = || self.stream.memcpy_dtod(&from, &mut into);
            if self.timed(&mut copy)? < LONG_ENOUGH / 5 && bytes * 4 <= COPIED.1.min(most) {
                bytes *= 4;
                continue;
            }
            let fastest = self.fastest(copy)?;
            let found = self.stream.clone_dtoh(&into).map_err(&wrong)?;
            let other = found.iter().zip(&numbers).position(|(found, own)| found != own);
            let wrong = other.map(|at| {
                let (found, own) = (found[at], numbers[at]);
                format!("number {at} of a copy in its memory is {found:#x} in place of {own:#x}")
            });
            return Ok((bytes as f64 / fastest, wrong));
        }
    }

    /// Returns the seconds that the device takes at least.
    fn fastest(&self, mut work: impl FnMut() -> Result<(), DriverError>) -> Result<f64, GpuError> {
        let mut times = (0..TIMES).map(|_| self.timed(&mut work));
        let fastest = times.try_fold(Duration::MAX, |fastest, taken| Ok(fastest.min(taken?)))?;
        Ok(fastest.as_secs_f64().max(f64::MIN_POSITIVE))
    }

    /// Returns how long the device takes.
    fn timed(&self, work: impl FnOnce() -> Result<(), DriverError>) -> Result<Duration, GpuError> {
        let wrong = driver("wait for the device");
        self.stream.synchronize().map_err(&wrong)?;
        let begun = Instant::now();
        work().and_then(|()| self.stream.synchronize()).map_err(wrong)?;
        Ok(begun.elapsed())
    }

    /// Connects this GPU with those of the other ranks of a group. All of them must call it.
    pub(super) fn join(&self, group: &mut Group) -> Result<Joined<'_>, GpuError> {
        let ranks = Communicator::within(group, &self.stream, self.timeout)?;
        Ok(Joined { card: self, ranks, numbers: None })
    }
}

/// The product on the CPU.
fn product(left: &[f32], right: &[f32]) -> Vec<f32> {
    let mut result = vec![0.0; SIDE * SIDE];
    for (row, own) in result.chunks_exact_mut(SIDE).enumerate() {
        for (one, numbers) in left[row * SIDE..].iter().zip(right.chunks_exact(SIDE)) {
            own.iter_mut().zip(numbers).for_each(|(sum, other)| *sum += one * other);
        }
    }
    result
}

/// A GPU that NCCL has connected with others.
pub(super) struct Joined<'a> {
    card: &'a Card,
    ranks: Communicator,
    /// What was summed last. It is freed after NCCL has ended: to free what NCCL uses can wait for
    /// NCCL, and after a failure NCCL waits for the other ranks.
    numbers: Option<CudaSlice<f32>>,
}

impl Joined<'_> {
    /// Sums numbers over the ranks of the group, and then as many again, so often. Returns the first
    /// sums, and the seconds of each of those that followed.
    pub(super) fn sum(
        &mut self,
        group: &mut Group,
        own: &[f32],
        times: u32,
    ) -> Result<(Vec<f32>, f64), GpuError> {
        let wrong = driver("sum");
        let Joined { card, ranks, numbers } = self;
        let there = card.stream.clone_htod(own).map_err(&wrong);
        let queued = there.and_then(|there| {
            let numbers = numbers.insert(there);
            ranks.all_reduce_sum(numbers)?;
            Ok(numbers)
        });
        let (numbers, _) = settled(ranks, group, queued)?;
        let sums = card.stream.clone_dtoh(numbers).map_err(wrong);
        let begun = Instant::now();
        let queued = (0..times).try_for_each(|_| ranks.all_reduce_sum(numbers));
        let ((), done) = settled(ranks, group, queued)?;
        Ok((sums?, (done - begun).as_secs_f64() / f64::from(times)))
    }
}

/// Waits for what this rank has queued, and for the other ranks to say that theirs is done. If
/// one has failed, all get an error, so that they go on together. Also returns when this rank
/// was done.
///
/// A communicator that has failed tells the other ranks by itself, in the same call.
fn settled<T>(
    ranks: &Communicator,
    group: &mut Group,
    queued: Result<T, GpuError>,
) -> Result<(T, Instant), GpuError> {
    if queued.is_ok() {
        ranks.wait(group)?;
    }
    let done = Instant::now();
    let said = queued.as_ref().err().map_or("", GpuError::what);
    let all = group
        .all_gather(said.as_bytes())
        .map_err(|error| GpuError::new(error.to_string(), "look at the output of that rank"))?;
    let queued = queued?;
    let failed = (0..).zip(&all).find(|(_, text)| !text.is_empty());
    failed.map_or(Ok((queued, done)), |(rank, text): (u32, _)| {
        Err(GpuError::new(format!("rank {rank}: {}", printable(text)), "start all ranks again"))
    })
}

/// Returns the ports of InfiniBand and RoCE adapters that are active. `adapters` is where Linux
/// lists them.
pub(super) fn active_ports(adapters: &Path) -> Vec<String> {
    let mut ports = Vec::new();
    for adapter in entries(adapters) {
        let folder = adapters.join(&adapter).join("ports");
        for port in entries(&folder) {
            let state = fs::read_to_string(folder.join(&port).join("state")).unwrap_or_default();
            if state.trim().ends_with("ACTIVE") {
                ports.push(format!("{adapter}:{port}"));
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_infiniband_that_are_active_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        for (adapter, state) in [("mlx5_1", "4: ACTIVE"), ("mlx5_0", "1: DOWN")] {
            let port = folder.path().join(adapter).join("ports/1");
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), format!("{state}\n")).unwrap();
        }
        assert_eq!(active_ports(folder.path()), ["mlx5_1:1"]);
        assert_eq!(active_ports(Path::new("/no/such/folder")), [""; 0]);
    }
}
