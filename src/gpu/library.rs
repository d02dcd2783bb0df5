//! Which libraries are there, before one of them is called.

#![expect(unsafe_code, reason = "the libraries are C libraries, and they are loaded at run time")]

use libloading::Library;
use mpienv_core::Environment;

use crate::{GpuError, Result};

/// Fails if the loader does not find NVIDIA's driver.
pub(crate) fn check_driver() -> Result<()> {
    // SAFETY: the driver's initializers only set up its own data.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        return Ok(());
    }
    Err(missing(
        "NVIDIA's driver",
        "libcuda.so.1",
        "install NVIDIA's driver on this host; in a container, pass it in (docker --gpus all, \
         apptainer --nv)",
    ))
}

/// Fails if the loader does not find NVRTC.
pub(crate) fn check_nvrtc() -> Result<()> {
    // SAFETY: as for the driver.
    if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Ok(());
    }
    Err(missing(
        "NVRTC, which compiles kernels",
        "libnvrtc.so",
        "install CUDA's toolkit or pip install nvidia-cuda-nvrtc-cu12, and put the library's folder \
         on LD_LIBRARY_PATH",
    ))
}

/// Loads NCCL. PyTorch's package has it in `site-packages/nvidia/nccl/lib`, which is not searched.
pub(crate) fn load_nccl() -> Result<Library> {
    let names = ["libnccl.so.2", "libnccl.so"];
    // SAFETY: NCCL's initializers only set up its own data.
    let loaded = names.iter().find_map(|&name| unsafe { Library::new(name) }.ok());
    loaded.ok_or_else(|| {
        missing(
            "NCCL",
            names[0],
            "install it (apt install libnccl2, or pip install nvidia-nccl-cu12), and put the \
             library's folder on LD_LIBRARY_PATH",
        )
    })
}

fn missing(what: &str, file: &str, remedy: &str) -> GpuError {
    let environment = Environment::current();
    let searched = match environment.get("LD_LIBRARY_PATH").filter(|path| !path.is_empty()) {
        Some(path) => format!("LD_LIBRARY_PATH ({})", path.to_string_lossy()),
        None => "LD_LIBRARY_PATH, which is not set,".to_owned(),
    };
    GpuError::new(
        format!(
            "cannot load {what}: the loader found no {file} in the folders of {searched} and of the system"
        ),
        remedy,
    )
}
