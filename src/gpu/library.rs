//! Which libraries are there, before one of them is called.

#![expect(unsafe_code, reason = "the libraries are C libraries, and they are loaded at run time")]

use libloading::Library;
use mpienv_core::Environment;

use crate::{GpuError, Result};

/// A library that is loaded by the first call of one of its functions.
pub(crate) struct Needed {
    is_present: unsafe fn() -> bool,
    what: &'static str,
    file: &'static str,
    remedy: &'static str,
}

pub(crate) const DRIVER: Needed = Needed {
    is_present: cudarc::driver::sys::is_culib_present,
    what: "NVIDIA's driver",
    file: "libcuda.so.1",
    remedy: "install NVIDIA's driver on this host; in a container, pass it in (docker --gpus all, \
             apptainer --nv)",
};

pub(crate) const NVRTC: Needed = Needed {
    is_present: cudarc::nvrtc::sys::is_culib_present,
    what: "NVRTC, which compiles kernels",
    file: "libnvrtc.so",
    remedy: "install CUDA's toolkit or pip install nvidia-cuda-nvrtc-cu12, and put the library's \
             folder on LD_LIBRARY_PATH",
};

impl Needed {
    /// Fails if the loader does not find the library.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the initializers of these libraries only set up their own data.
        let is_present = unsafe { (self.is_present)() };
        if is_present { Ok(()) } else { Err(missing(self.what, self.file, self.remedy)) }
    }
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
