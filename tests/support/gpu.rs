//! Stand-ins for NVIDIA's driver, NVRTC and NCCL, which compute on the CPU, for hosts without a GPU. Their sources are beside
//! this file. They show which calls a program makes and what it does when one fails, and nothing of speed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::tool::is_there;

/// The libraries, each by its source's name and its own.
const LIBRARIES: [(&str, &str); 3] =
    [("cuda", "libcuda.so.1"), ("nccl", "libnccl.so.2"), ("nvrtc", "libnvrtc.so")];

fn sources() -> PathBuf {
    // The packages of the workspace that use it lie at different depths.
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = own.ancestors().map(|folder| folder.join("tests/support/gpu"));
    folder.into_iter().find(|folder| folder.join("cuda.c").is_file()).unwrap()
}

/// What the loader calls a library of NVRTC's once it is loaded.
pub const NVRTC: &str = "libnvrtc.so.13";

/// Where each library is, in a folder of its own; `None` if gcc is missing.
pub fn built() -> Option<&'static Path> {
    static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        if !is_there("gcc") {
            return None;
        }
        let (folder, sources) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu"), sources());
        fs::create_dir_all(&folder).unwrap();
        // Another test program may build them at the same time.
        let lock = File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        for (source, library) in LIBRARIES {
            let into = folder.join(source);
            fs::create_dir_all(&into).unwrap();
            let mut gcc = Command::new("gcc");
            gcc.args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]);
            if source == "nvrtc" {
                gcc.arg(format!("-Wl,-soname,{NVRTC}"));
            }
            // A running program keeps the file that it has loaded.
            let new = into.join("new");
            gcc.arg("-o")
                .arg(&new)
                .arg(sources.join(source).with_extension("c"))
                .args(["-ldl", "-lpthread"]);
            let output = gcc.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            fs::rename(new, into.join(library)).unwrap();
        }
        Some(folder)
    });
    BUILT.as_deref()
}

/// Lets a command find the stand-ins, but for those `left_out`: `cuda`, `nccl`, `nvrtc`. `None` if
/// gcc is missing.
pub fn with_gpus<'c>(command: &'c mut Command, left_out: &[&str]) -> Option<&'c mut Command> {
    let built = built()?;
    let names = LIBRARIES.iter().map(|(source, _)| *source);
    let shown = names.filter(|name| !left_out.contains(name));
    let folders: Vec<String> =
        shown.map(|name| built.join(name).to_str().unwrap().to_owned()).collect();
    command.env("LD_LIBRARY_PATH", folders.join(":"));
    command.env("STAND_IN_SHARED", built);
    command.env("STAND_IN_HEADER", sources().join("device.h"));
    Some(command)
}
