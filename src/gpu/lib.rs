//! NVIDIA's GPUs and NCCL, for programs whose ranks have met.
//!
//! The driver (`libcuda.so.1`), NVRTC (`libnvrtc.so`) and NCCL (`libnccl.so.2`) are loaded at run
//! time, so nothing of CUDA is needed to compile. If the loader does not find the latter two, they are
//! looked for in the packages of NVIDIA's, such as PyTorch brings, of the virtual environment that has
//! the program. What is missing is an error that names the library, where it was looked for, and the
//! remedy.
//!
//! [`Device::of_rank`] is the device of a rank, [`compile`] makes kernels for it, and a
//! [`Communicator`] sums numbers over the devices of all ranks of a
//! [`Group`](mpienv_collective::Group): the group brings NCCL's id to all ranks, and names the rank
//! that is lost where NCCL alone would wait.
//!
//! Each rank doubles its number on its device, and all add them up:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use mpienv_collective::Group;
//! use mpienv_core::ClusterInfo;
//! use mpienv_gpu::cudarc::driver::{LaunchConfig, PushKernelArg};
//! use mpienv_gpu::{Communicator, Device, GpuError, compile, context, devices, nccl_version};
//!
//! let info = ClusterInfo::from_env()?;
//! let mut group = Group::connect(&info)?;
//! let device = Device::of_rank(&info)?;
//! println!("device {} of {}, NCCL {}", device.ordinal, devices()?.len(), nccl_version()?);
//! let context = context(&device)?;
//! let source = "extern \"C\" __global__ void doubled(float *number) { *number *= 2; }";
//! let wrong = |error| GpuError::from_driver("double a number", error);
//! let kernel = compile(&context, source)?.load_function("doubled").map_err(wrong)?;
//! let stream = context.new_stream().map_err(wrong)?;
//! let mut number = stream.clone_htod(&[info.rank().index() as f32]).map_err(wrong)?;
//! let mut launch = stream.launch_builder(&kernel);
//! // SAFETY: the kernel takes the place of one number.
//! unsafe { launch.arg(&mut number).launch(LaunchConfig::for_num_elems(1)) }.map_err(wrong)?;
//! let ranks = Communicator::within(&mut group, &stream, Duration::from_secs(60))?;
//! ranks.all_reduce_sum(&mut number)?;
//! ranks.wait(&mut group)?;
//! println!("the sum is {}", stream.clone_dtoh(&number).map_err(wrong)?[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod error;
mod library;
mod nccl;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

pub use cudarc;
pub use device::{Device, devices};
pub use error::GpuError;
pub use nccl::{Communicator, DeviceOfRank, SharedDevice, nccl_version, shared_devices};

/// The result of a call to a GPU's library.
pub type Result<T> = std::result::Result<T, GpuError>;

/// Opens a device for this process.
///
/// # Errors
/// If the driver refuses, for example because another program uses the device alone.
pub fn context(device: &Device) -> Result<Arc<CudaContext>> {
    library::DRIVER.check()?;
    let context = CudaContext::new(device.ordinal as usize);
    context.map_err(|error| GpuError::from_driver("open the device", error))
}

/// Compute capabilities that every NVRTC of CUDA 12 knows, the newest first.
const OLDER: [(i32, i32); 3] = [(9, 0), (8, 0), (7, 0)];

/// Compiles kernels, written in CUDA C++, for a device and loads them.
///
/// # Errors
/// - NVRTC is missing.
/// - The source does not compile: the error has the compiler's text.
/// - The driver is older than NVRTC, and does not take what NVRTC makes.
pub fn compile(context: &Arc<CudaContext>, source: &str) -> Result<Arc<CudaModule>> {
    library::NVRTC.check()?;
    let capability = context.compute_capability();
    let (major, minor) =
        capability.map_err(|error| GpuError::from_driver("ask for the architecture", error))?;
    let compiled = |(major, minor)| {
        let options = vec![format!("--gpu-architecture=compute_{major}{minor}")];
        compile_ptx_with_opts(source, CompileOptions { options, ..CompileOptions::default() })
    };
    // An NVRTC that is older than the device makes code for an older one, which the driver
    // translates.
    let mut older = OLDER.into_iter().filter(|&older| older < (major, minor));
    let code = compiled((major, minor))
        .or_else(|error| older.find_map(|older| compiled(older).ok()).ok_or(error));
    let code = code.map_err(|error| {
        let text = match &error {
            CompileError::CompileError { log, .. } => log.to_string_lossy().trim().to_owned(),
            error => format!("{error:?}"),
        };
        GpuError::new(
            format!(
                "NVRTC cannot compile the kernels for compute capability {major}.{minor}: {text}"
            ),
            "install an NVRTC that knows this GPU (pip install nvidia-cuda-nvrtc), and put its \
             folder on LD_LIBRARY_PATH",
        )
    })?;
    context.load_module(code).map_err(|error| GpuError::from_driver("load the kernels", error))
}
