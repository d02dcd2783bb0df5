//! Data parallelism on GPUs: every rank keeps the training set, the parameters and the gradient on
//! its device, and NCCL sums the gradients there.
//!
//! The CPU does not take part in a step. It has the device take many steps, up to the next
//! checkpoint or the end of the epoch, and then reports their losses one by one. A step is a few
//! kernels in a captured graph, with the all-reduce among them. A single rank on a device that has
//! clusters takes all these steps in one launch.

#![expect(unsafe_code, reason = "the driver cannot check what a kernel does with its parameters")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mpienv::collective::Group;
use mpienv::{ClusterInfo, Rank};
use mpienv_gpu::cudarc::driver::sys::{
    CUfunction_attribute, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use mpienv_gpu::cudarc::driver::{
    CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, DriverError, LaunchConfig,
    PushKernelArg,
};
use mpienv_gpu::{Communicator, Device, GpuError, nccl_version};
use mpienv_sharding::error::{Error, TRAINING_FAILED};

use super::{Learner, Outcome, ReadyGpu, Share, TrainConfig, Training};
use crate::agreement;
use crate::batch;
use crate::data::{CLASSES, Dataset, PIXELS};
use crate::model::{Architecture, Model, mlp};

/// What the device runs. Its head is [`Task::head`].
const KERNELS: &str = include_str!("cuda/kernels.cu");

/// The steps that a device takes at most before the CPU looks at their losses and at signals.
const AHEAD: usize = 256;

/// The steps of a long graph. The rest of a stretch is taken one by one.
const LONG: usize = 32;

/// The threads of a block of every kernel but `epoch`.
const THREADS: u32 = 256;

/// The blocks of a cluster, and the threads of each: `BLOCKS` in the kernels.
const CLUSTER: (u32, u32) = (8, 640);

/// The largest batch that `epoch` takes: two threads for each logit.
const CLUSTER_BATCH: usize = 32;

const REMEDY: &str = "install a newer driver, or use --device cpu";

/// The first compute capability whose devices have clusters.
const HAS_CLUSTERS: (i32, i32) = (9, 0);

/// What a rank trains: what its kernels are compiled for.
#[derive(Clone, Copy, Debug)]
struct Task {
    model: Architecture,
    samples: usize,
    rank: Rank,
    /// This rank's samples in a step, at most.
    batch: usize,
    /// Those of all ranks.
    whole: usize,
    learning_rate: f32,
    /// Whether the device takes many steps in one launch.
    clusters: bool,
}

impl Task {
    /// What a device of this compute capability runs.
    fn new(
        model: Architecture,
        config: &TrainConfig,
        rank: Rank,
        samples: usize,
        capability: (i32, i32),
    ) -> Task {
        let whole = config.batch_size.saturating_mul(rank.size() as usize).min(samples);
        let (batch, learning_rate) = (config.largest_share(samples, rank), config.learning_rate);
        let is_small = model == Architecture::Linear && batch <= CLUSTER_BATCH;
        let clusters = capability >= HAS_CLUSTERS && rank.size() == 1 && is_small;
        Task { model, samples, rank, batch, whole, learning_rate, clusters }
    }

    fn hidden(&self) -> usize {
        if self.model == Architecture::Mlp { mlp::HIDDEN } else { 0 }
    }

    /// The inputs of the layer before the logits.
    fn last(&self) -> usize {
        if self.hidden() == 0 { PIXELS } else { self.hidden() }
    }

    fn parameters(&self) -> usize {
        self.hidden() * (PIXELS + 1) + CLASSES * (self.last() + 1)
    }

    fn steps(&self) -> usize {
        self.samples.div_ceil(self.whole)
    }

    /// Whether this rank has any samples in a step.
    fn has_samples(&self, step: usize) -> bool {
        self.samples - step * self.whole > self.rank.index() as usize
    }

    /// What the kernels need defined.
    fn head(&self) -> String {
        let numbers = [
            ("PIXELS", PIXELS),
            ("CLASSES", CLASSES),
            ("HIDDEN", self.hidden()),
            ("SAMPLES", self.samples),
            ("RANK", self.rank.index() as usize),
            ("RANKS", self.rank.size() as usize),
            ("BATCH", self.batch),
            ("WHOLE", self.whole),
        ];
        let mut head: String =
            numbers.iter().map(|(name, number)| format!("#define {name} {number}\n")).collect();
        head += &format!("#define RATE {:e}f\n", self.learning_rate);
        if self.clusters {
            head += "#define CLUSTER\n";
        }
        head
    }

    /// The bytes of shared memory that a block of `epoch` needs: `struct Block` in the kernels.
    fn cluster_bytes(&self) -> u32 {
        let (blocks, outputs) = (CLUSTER.0 as usize, self.batch * CLASSES);
        let row = PIXELS / blocks + 4;
        let turn = self.batch * row + blocks * outputs + self.batch;
        let rest = CLASSES * row + 2 * outputs + self.batch * (CLASSES + 2) + CLASSES;
        (size_of::<f32>() * (2 * turn + rest)).next_multiple_of(16) as u32
    }
}

/// A run's numbers on the device.
struct Memory {
    images: CudaSlice<f32>,
    labels: CudaSlice<i32>,
    /// The samples of the epoch, in order.
    order: CudaSlice<u32>,
    parameters: CudaSlice<f32>,
    hidden: CudaSlice<f32>,
    hidden_gradients: CudaSlice<f32>,
    /// The gradient of each sample's logits.
    rows: CudaSlice<f32>,
    losses: CudaSlice<f32>,
    /// The gradient, loss and stop weight, as in [`super::data_parallel`].
    sum: CudaSlice<f32>,
    stop: CudaSlice<f32>,
    /// The number of the next step.
    at: CudaSlice<i32>,
    /// Of each step of the epoch: this rank's mean loss, that of all ranks, and the stop weight.
    log: CudaSlice<f32>,
}

impl Memory {
    fn new(stream: &Arc<CudaStream>, task: &Task, data: &Dataset) -> Result<Memory, DriverError> {
        let labels: Vec<i32> = data.labels().iter().map(|&label| label.into()).collect();
        let zeros = |count: usize| stream.alloc_zeros::<f32>(count.max(1));
        Ok(Memory {
            images: zeros(task.samples * PIXELS)?,
            labels: stream.clone_htod(&labels)?,
            order: stream.alloc_zeros(task.samples)?,
            parameters: zeros(task.parameters())?,
            hidden: zeros(task.batch * task.hidden())?,
            hidden_gradients: zeros(task.batch * task.hidden())?,
            rows: zeros(task.batch * CLASSES)?,
            losses: zeros(task.batch)?,
            sum: zeros(task.parameters() + 2)?,
            stop: zeros(1)?,
            at: stream.alloc_zeros(1)?,
            log: zeros(3 * task.steps())?,
        })
    }
}

/// Opens this rank's device, compiles the kernels, and loads the training set.
///
/// # Errors
/// If a library of CUDA is missing, there is no device, or it refuses: names what, and the remedy.
pub fn open(
    info: &ClusterInfo,
    model: Architecture,
    config: &TrainConfig,
    data: &Dataset,
    timeout: Duration,
) -> Result<ReadyGpu, Error> {
    let rank = info.rank();
    let device = Device::of_rank(info).map_err(Error::input)?;
    let context = mpienv_gpu::context(&device).map_err(Error::input)?;
    // SAFETY: all that the device does for this run is in one stream. With its events, cudarc would
    // have a captured graph wait for what came before it, which the driver refuses.
    unsafe { context.disable_event_tracking() };
    let Device { ordinal, name, compute_capability, .. } = device;
    let description = if rank.size() > 1 {
        let version = nccl_version().map_err(Error::input)?;
        format!("training on GPUs ({name}), gradients over NCCL {version}")
    } else {
        format!("training on GPU {ordinal} ({name})")
    };
    let task = Task::new(model, config, rank, data.count(), compute_capability);
    let module = mpienv_gpu::compile(&context, &(task.head() + KERNELS)).map_err(Error::input)?;
    let load = || {
        let stream = context.new_stream()?;
        let kernels = Kernels::load(&module, &task)?;
        let epoch = task.clusters.then(|| module.load_function("epoch")).transpose()?;
        if let Some(epoch) = &epoch {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            epoch.set_attribute(most, task.cluster_bytes() as i32)?;
        }
        let memory = Memory::new(&stream, &task, data)?;
        let mut gpu = Gpu { stream, task, kernels, epoch, memory, timeout };
        gpu.load_images(data, &module.load_function("normalize")?)?;
        Ok(gpu)
    };
    let gpu =
        load().map_err(|error| Error::input(GpuError::from_driver("prepare the run", error)))?;
    let train = |model: &mut dyn Model, parameters: &mut [f32], mut training: Training<'_>| {
        training.agree(model, "data parallel on GPUs", parameters)?;
        let mut learner = GpuLearner::new(gpu, model, parameters, training.group)?;
        training.train(&mut learner)
    };
    Ok(ReadyGpu { description, train: Box::new(train) })
}

/// The kernels of a step. All are loaded first: the driver may load one only when it is asked for
/// it, which a capture does not allow.
struct Kernels {
    loss: CudaFunction,
    gradient: CudaFunction,
    update: CudaFunction,
    /// Of the hidden layer, if there is one: its output, and its gradient.
    hidden: Option<[CudaFunction; 2]>,
}

impl Kernels {
    fn load(module: &Arc<CudaModule>, task: &Task) -> Result<Kernels, DriverError> {
        let load = |name| module.load_function(name);
        let hidden = || Ok([load("hidden_layer")?, load("hidden_gradient")?]);
        Ok(Kernels {
            loss: load("loss")?,
            gradient: load("gradient")?,
            update: load("update")?,
            hidden: (task.hidden() > 0).then(hidden).transpose()?,
        })
    }
}

/// A device with compiled kernels and the training set, ready for the other ranks.
struct Gpu {
    stream: Arc<CudaStream>,
    task: Task,
    kernels: Kernels,
    /// The kernel that takes many steps, if the device has clusters.
    epoch: Option<CudaFunction>,
    memory: Memory,
    /// How long NCCL may take.
    timeout: Duration,
}

impl Gpu {
    fn load_images(&mut self, data: &Dataset, normalize: &CudaFunction) -> Result<(), DriverError> {
        let pixels = self.stream.clone_htod(data.images())?;
        let values: Vec<f32> = (0..=u8::MAX).map(batch::normalized).collect();
        let values = self.stream.clone_htod(&values)?;
        let count = data.images().len() as i64;
        let blocks = data.images().len().div_ceil(THREADS as usize).min(4096) as u32;
        let mut launch = self.stream.launch_builder(normalize);
        launch.arg(&pixels).arg(&values).arg(&mut self.memory.images).arg(&count);
        // SAFETY: these are the kernel's parameters, and it writes `count` numbers.
        unsafe { launch.launch(grid(blocks, 1)) }?;
        self.stream.synchronize()
    }

    /// Adds the kernels of a step to the stream, with the sum over all ranks.
    fn enqueue_step(&mut self, communicator: Option<&Communicator>) -> Result<(), GpuError> {
        let Gpu { stream, task, kernels, memory, .. } = self;
        let wrong = |error| GpuError::from_driver("cuLaunchKernel", error);
        let layer = |inputs: usize, outputs: usize| {
            grid((inputs + 1).div_ceil(32) as u32, outputs.div_ceil(8) as u32)
        };
        let samples = task.batch as u32;
        if let Some([forward, _]) = &kernels.hidden {
            let mut launch = stream.launch_builder(forward);
            launch.arg(&memory.images).arg(&memory.order).arg(&memory.parameters);
            launch.arg(&mut memory.hidden).arg(&memory.at);
            // SAFETY: these are the kernel's parameters, and it writes a row for each block in x.
            unsafe { launch.launch(grid(samples, task.hidden().div_ceil(32) as u32)) }
                .map_err(wrong)?;
        }
        let mut launch = stream.launch_builder(&kernels.loss);
        launch.arg(&memory.images).arg(&memory.labels).arg(&memory.order).arg(&memory.parameters);
        launch.arg(&memory.hidden).arg(&mut memory.rows).arg(&mut memory.hidden_gradients);
        launch.arg(&mut memory.losses).arg(&memory.at);
        // SAFETY: these are the kernel's parameters, and it writes a row for each block.
        unsafe { launch.launch(grid(samples, 1)) }.map_err(wrong)?;
        let mut launch = stream.launch_builder(&kernels.gradient);
        launch.arg(&memory.images).arg(&memory.order).arg(&memory.hidden).arg(&memory.rows);
        launch.arg(&memory.losses).arg(&memory.stop).arg(&mut memory.sum).arg(&memory.at);
        launch.arg(&mut memory.log);
        // SAFETY: these are the kernel's parameters, and it writes the gradient of one layer.
        unsafe { launch.launch(layer(task.last(), CLASSES)) }.map_err(wrong)?;
        if let Some([_, backward]) = &kernels.hidden {
            let mut launch = stream.launch_builder(backward);
            launch.arg(&memory.images).arg(&memory.order).arg(&memory.hidden_gradients);
            launch.arg(&mut memory.sum).arg(&memory.at);
            // SAFETY: these are the kernel's parameters, and it writes the gradient of one layer.
            unsafe { launch.launch(layer(PIXELS, task.hidden())) }.map_err(wrong)?;
        }
        if let Some(communicator) = communicator {
            communicator.all_reduce_sum(&mut memory.sum)?;
        }
        let blocks = task.parameters().div_ceil(THREADS as usize) as u32;
        let mut launch = stream.launch_builder(&kernels.update);
        launch.arg(&mut memory.parameters).arg(&memory.sum).arg(&mut memory.at);
        launch.arg(&mut memory.log);
        // SAFETY: these are the kernel's parameters, and it checks its index.
        unsafe { launch.launch(grid(blocks, 1)) }.map_err(wrong)?;
        Ok(())
    }

    /// Captures `steps` steps as a graph.
    fn capture(
        &mut self,
        steps: usize,
        communicator: Option<&Communicator>,
    ) -> Result<CudaGraph, GpuError> {
        let wrong = |error| GpuError::from_driver("capture a step", error);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(wrong)?;
        let enqueued = (0..steps).try_for_each(|_| self.enqueue_step(communicator));
        // Ends the capture in any case.
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        enqueued?;
        graph.map_err(wrong)?.ok_or_else(|| GpuError::new("the driver captured no step", REMEDY))
    }
}

/// A launch of `x` times `y` blocks.
fn grid(x: u32, y: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (x, y, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// Trains on the device of this rank.
struct GpuLearner<'a> {
    /// The graphs of [`LONG`] steps and of one. Before what they use, so that they end first.
    graphs: Vec<(usize, CudaGraph)>,
    communicator: Option<Communicator>,
    gpu: Gpu,
    model: &'a mut dyn Model,
    /// The parameters as of the last sync.
    whole: &'a mut [f32],
    /// What the device has done and was not yet reported.
    done: VecDeque<Outcome>,
}

impl<'a> GpuLearner<'a> {
    /// Loads the parameters and meets the other ranks' devices. All ranks of `group` must call this.
    fn new(
        mut gpu: Gpu,
        model: &'a mut dyn Model,
        whole: &'a mut [f32],
        group: &mut Group,
    ) -> Result<GpuLearner<'a>, Error> {
        let several = group.size() > 1;
        let meet = || Communicator::within(group, &gpu.stream, gpu.timeout);
        let communicator = several.then(meet).transpose().map_err(failed)?;
        gpu.stream.memcpy_htod(&*whole, &mut gpu.memory.parameters).map_err(driver)?;
        if let Some(communicator) = &communicator {
            // NCCL connects at the first sum, and not while a graph is captured.
            communicator.all_reduce_sum(&mut gpu.memory.sum).map_err(failed)?;
            communicator.wait(group).map_err(failed)?;
        }
        let mut graphs = Vec::new();
        if gpu.epoch.is_none() {
            for steps in [LONG, 1] {
                let graph = gpu.capture(steps, communicator.as_ref()).map_err(failed)?;
                graphs.push((steps, graph));
            }
        }
        Ok(GpuLearner { graphs, communicator, gpu, model, whole, done: VecDeque::new() })
    }

    /// Has the device take `steps` steps, and waits until it is done.
    fn take(
        &mut self,
        step: usize,
        steps: usize,
        stop: f32,
        group: &mut Group,
    ) -> Result<(), Error> {
        let Gpu { stream, task, epoch, memory, .. } = &mut self.gpu;
        if let Some(epoch) = epoch {
            let (first, count) = (step as i32, steps as i32);
            let mut launch = stream.launch_builder(epoch);
            launch.arg(&memory.images).arg(&memory.labels).arg(&memory.order);
            launch.arg(&mut memory.parameters).arg(&mut memory.log).arg(&first).arg(&count);
            let (blocks, threads) = CLUSTER;
            let config = LaunchConfig {
                grid_dim: (blocks, 1, 1),
                block_dim: (threads, 1, 1),
                shared_mem_bytes: task.cluster_bytes(),
            };
            // SAFETY: these are the kernel's parameters, and the steps are of this epoch.
            unsafe { launch.launch(config) }.map_err(driver)?;
        } else {
            stream.memcpy_htod(&[step as i32], &mut memory.at).map_err(driver)?;
            stream.memcpy_htod(&[stop], &mut memory.stop).map_err(driver)?;
            let mut left = steps;
            for (long, graph) in &self.graphs {
                while left >= *long {
                    graph.launch().map_err(driver)?;
                    left -= long;
                }
            }
        }
        match &self.communicator {
            // Copying would wait forever for a rank that is lost.
            Some(communicator) => communicator.wait(group).map_err(failed),
            None => stream.synchronize().map_err(driver),
        }
    }

    /// Trains as far as the parameters may run ahead of `share`, this rank's in the first step.
    fn run_ahead(&mut self, share: &Share<'_>, group: &mut Group) -> Result<(), Error> {
        let &Share { step, left, stop, .. } = share;
        let steps = left.min(AHEAD);
        self.take(step, steps, stop, group)?;
        let Gpu { stream, task, epoch, memory, .. } = &self.gpu;
        let mut log = vec![0.0; 3 * steps];
        let taken = memory.log.slice(3 * step..3 * (step + steps));
        stream.memcpy_dtoh(&taken, &mut log).map_err(driver)?;
        stream.synchronize().map_err(driver)?;
        for (step, &[own, loss, all]) in (step..).zip(log.as_chunks().0) {
            // The ranks stop after a step up to which the device has come.
            let is_last = self.done.len() + 1 == steps;
            let all = if epoch.is_some() { stop } else { all };
            let own = task.has_samples(step).then_some(own);
            self.done.push_back(Outcome { own, loss, stop: if is_last { all } else { 0.0 } });
        }
        Ok(())
    }
}

impl Learner for GpuLearner<'_> {
    fn begin(&mut self, order: &[usize]) -> Result<(), Error> {
        let order: Vec<u32> = order.iter().map(|&sample| sample as u32).collect();
        self.gpu.stream.memcpy_htod(&order, &mut self.gpu.memory.order).map_err(driver)
    }

    fn step(&mut self, share: &Share<'_>, group: &mut Group) -> Result<Outcome, Error> {
        if self.done.is_empty() {
            self.run_ahead(share, group)?;
        }
        let outcome = self.done.pop_front();
        outcome.ok_or_else(|| Error::new(TRAINING_FAILED, "the GPU has taken no step"))
    }

    fn sync(&mut self, group: &mut Group) -> Result<Result<(), String>, Error> {
        let Gpu { stream, memory, .. } = &self.gpu;
        stream.memcpy_dtoh(&memory.parameters, &mut *self.whole).map_err(driver)?;
        stream.synchronize().map_err(driver)?;
        Ok(agreement::check_replicas(self.whole, group)?)
    }

    fn model(&mut self) -> (&mut dyn Model, &[f32]) {
        (self.model, self.whole)
    }
}

/// The error of a call to the driver while a run trains.
fn driver(error: DriverError) -> Error {
    failed(GpuError::from_driver("train", error))
}

/// The error of a GPU while a run trains.
fn failed(error: GpuError) -> Error {
    Error::new(TRAINING_FAILED, error)
}
