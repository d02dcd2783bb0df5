//! What a GPU's library refused, in words of its user.

use std::fmt;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use serde::{Deserialize, Serialize};

/// Why a GPU or NCCL cannot be used, and what to do about it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuError {
    what: String,
    remedy: String,
}

mpienv_core::debug_is_text!(GpuError);

impl std::error::Error for GpuError {}

/// What failed, then the remedy.
impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl GpuError {
    /// An error of what failed, and why, and of what to do about it.
    #[must_use]
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> GpuError {
        GpuError { what: what.into(), remedy: remedy.into() }
    }

    /// What failed, and why.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// The error of a call to the driver, which a program made to `purpose`.
    #[must_use]
    pub fn from_driver(purpose: &str, error: DriverError) -> GpuError {
        let code = error.0;
        let text = |found: Result<&std::ffi::CStr, DriverError>| {
            found.map_or_else(|_| format!("{code:?}"), |text| text.to_string_lossy().into_owned())
        };
        let (name, meaning) = (text(error.error_name()), text(error.error_string()));
        GpuError::new(
            format!("cannot {purpose}: the driver says {name} ({meaning})"),
            remedy_of_driver(code),
        )
    }

    /// The error of a call to NCCL, with what the library last said.
    pub(crate) fn from_nccl(purpose: &str, code: &str, said: &str) -> GpuError {
        let said = said.trim();
        let detail = if said.is_empty() { String::new() } else { format!(": {said}") };
        GpuError::new(
            format!("cannot {purpose}: NCCL says {code:?}{detail}"),
            remedy_of_nccl(code, said),
        )
    }
}

fn remedy_of_driver(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "look at CUDA_VISIBLE_DEVICES, and ask the scheduler or the container for a GPU (Slurm \
             --gpus, docker --gpus all, apptainer --nv)"
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "see with nvidia-smi which program uses the GPU's memory, or give each rank its own GPU"
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver is older than NVRTC: install a newer driver, or an older NVRTC (pip install \
             nvidia-cuda-nvrtc-cu12), and put its folder on LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the driver's library does not fit the kernel's module: restart the host after an \
             update of the driver, or leave CUDA's compatibility folder out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another program uses this GPU alone (nvidia-smi -q -d COMPUTE); choose another one"
        }
        _ => "look at nvidia-smi and at the kernel's log (dmesg) on this host",
    }
}

fn remedy_of_nccl(code: &str, said: &str) -> &'static str {
    let says = |text: &str| said.to_ascii_lowercase().contains(text);
    if says("duplicate gpu") {
        "two ranks use one GPU: start as many ranks on each host as it has GPUs"
    } else if says("socket interface") {
        "NCCL_SOCKET_IFNAME leaves it no interface: name one of those that `mpienv doctor` lists, or \
         unset it"
    } else if says("version") {
        "the ranks load different versions of NCCL: put the same one first on LD_LIBRARY_PATH"
    } else if says("out of memory") {
        "see with nvidia-smi which program uses the GPU's memory"
    } else if says("shared memory") || says("/dev/shm") {
        "the container has too little /dev/shm: start it with --ipc=host or --shm-size=1g"
    } else if code.contains("remote") || says("connect") || says("timed out") {
        "another rank has ended, or a host cannot reach another one: look at the other ranks' \
         output, and run `mpienv check`"
    } else {
        "set NCCL_DEBUG=INFO and look at what NCCL prints"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nccl_says_is_explained() {
        for (said, remedy) in [
            ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60", "as many ranks"),
            ("Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
            ("Mismatched NCCL version detected : rank 0 version 22000", "LD_LIBRARY_PATH"),
            ("Cuda failure 2 'out of memory'", "nvidia-smi"),
            ("Error while creating shared memory segment /dev/shm/nccl-x", "--shm-size"),
            ("socketProgress: Connection closed by remote peer", "another rank has ended"),
            ("", "NCCL_DEBUG"),
        ] {
            let error = GpuError::from_nccl("sum", "internal error", said);
            assert!(error.remedy().contains(remedy), "{error}");
            assert!(error.what().ends_with(said) && error.what().contains("internal error"));
        }
    }
}
