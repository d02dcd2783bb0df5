//! Which libraries are there, before one of them is called.

#![expect(unsafe_code, reason = "the libraries are C libraries, and they are loaded at run time")]

use std::path::{Path, PathBuf};
use std::{env, fs, mem};

use libloading::Library;
use mpienv_core::Environment;

use crate::{GpuError, Result};

/// A library that is loaded by the first call of one of its functions.
pub(crate) struct Needed {
    is_present: unsafe fn() -> bool,
    what: &'static str,
    file: &'static str,
    /// Its files in NVIDIA's packages for Python, the newest first.
    packaged: &'static [&'static str],
    remedy: &'static str,
}

pub(crate) const DRIVER: Needed = Needed {
    is_present: cudarc::driver::sys::is_culib_present,
    what: "NVIDIA's driver",
    file: "libcuda.so.1",
    packaged: &[],
    remedy: "install NVIDIA's driver on this host; in a container, pass it in (docker --gpus all, \
             apptainer --nv)",
};

pub(crate) const NVRTC: Needed = Needed {
    is_present: cudarc::nvrtc::sys::is_culib_present,
    what: "NVRTC, which compiles kernels",
    file: "libnvrtc.so",
    packaged: &["libnvrtc.so.13", "libnvrtc.so.12"],
    remedy: "install CUDA's toolkit, or pip install nvidia-cuda-nvrtc (CUDA 12: \
             nvidia-cuda-nvrtc-cu12) where mpienv is, or put the library's folder on LD_LIBRARY_PATH",
};

impl Needed {
    /// Fails if the loader does not find the library, and no package beside this program has it.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the initializers of these libraries only set up their own data.
        let is_present = || unsafe { (self.is_present)() };
        // The loader finds a library by its own name once it is loaded.
        if is_present() || (packaged(self.packaged).map(mem::forget).is_some() && is_present()) {
            return Ok(());
        }
        Err(missing(self.what, self.file, !self.packaged.is_empty(), self.remedy))
    }
}

/// Loads NCCL.
pub(crate) fn load_nccl() -> Result<Library> {
    let names = ["libnccl.so.2", "libnccl.so"];
    // SAFETY: NCCL's initializers only set up its own data.
    let loaded = names.iter().find_map(|&name| unsafe { Library::new(name) }.ok());
    loaded.or_else(|| packaged(&names[..1])).ok_or_else(|| {
        missing(
            "NCCL",
            names[0],
            true,
            "install it (apt install libnccl2), or pip install nvidia-nccl-cu13 (CUDA 12: \
             nvidia-nccl-cu12) where mpienv is, or put the library's folder on LD_LIBRARY_PATH",
        )
    })
}

/// Loads the first of these libraries that a package of NVIDIA's beside this program has. PyTorch
/// brings them, in folders that the loader does not search.
fn packaged(names: &[&str]) -> Option<Library> {
    let folders: Vec<PathBuf> = folders_in(&prefix()?.join("lib"))
        .filter(|folder| folder.file_name().is_some_and(is_python))
        .flat_map(|python| folders_in(&python.join("site-packages/nvidia")))
        .collect();
    let files =
        names.iter().flat_map(|name| folders.iter().map(move |own| own.join("lib").join(name)));
    // SAFETY: the initializers of these libraries only set up their own data.
    files.filter(|file| file.is_file()).find_map(|file| unsafe { Library::new(file) }.ok())
}

fn is_python(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"python")
}

/// Returns the virtual environment, or another folder, whose `bin` has this program.
fn prefix() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.parent()?.parent()?.to_owned())
}

/// Returns the entries of a folder; none if it cannot be read.
fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn missing(what: &str, file: &str, is_packaged: bool, remedy: &str) -> GpuError {
    let environment = Environment::current();
    let searched = match environment.get("LD_LIBRARY_PATH").filter(|path| !path.is_empty()) {
        Some(path) => format!("LD_LIBRARY_PATH ({})", path.to_string_lossy()),
        None => "LD_LIBRARY_PATH, which is not set,".to_owned(),
    };
    let packages = prefix().filter(|_| is_packaged).map_or(String::new(), |prefix| {
        let prefix = prefix.display();
        format!(", and {prefix}/lib/python*/site-packages/nvidia/*/lib does not have it")
    });
    GpuError::new(
        format!(
            "cannot load {what}: the loader found no {file} in the folders of {searched} and of the system{packages}"
        ),
        remedy,
    )
}
