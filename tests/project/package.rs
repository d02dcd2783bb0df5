//! What `cargo package` packages for crates.io.

use std::path::Path;
use std::process::Command;

/// The names of all files in a package.
fn files(package: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["package", "--package", package, "--list", "--allow-dirty", "--offline"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_package_has_what_users_need_and_nothing_heavy() {
    let files = files("mpienv");
    for file in [
        "README.md",
        "CHANGELOG.md",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "Cargo.lock",
        "src/main.rs",
        "examples/cluster_info.rs",
        "examples/README.md",
        "examples/slurm/srun.sbatch",
        "tests/it/errors.rs",
        ".dist/data/share/man/man1/mpienv.1",
        ".dist/data/share/bash-completion/completions/mpienv",
        ".dist/data/share/zsh/site-functions/_mpienv",
        ".dist/data/share/fish/vendor_completions.d/mpienv.fish",
    ] {
        assert!(files.iter().any(|found| found == file), "{file} is missing");
    }
    // Only a checkout has a commit, and no program that depends on mpienv compiles a script first.
    assert!(!files.iter().any(|file| file == "src/build.rs"), "{files:?}");
    for other in [
        "examples/sharding/",
        "examples/trainer/",
        "examples/burn/",
        "examples/candle/",
        "src/core/",
        "src/collective/",
        "src/torch/",
        "src/python/",
    ] {
        assert!(!files.iter().any(|file| file.starts_with(other)), "{other} does not belong to it");
    }
    // Some files are created while packaging.
    let size = |file: &String| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        path.metadata().map_or(0, |metadata| metadata.len())
    };
    for file in &files {
        assert!(size(file) < 200_000, "{file} has {} bytes", size(file));
    }
    let all: u64 = files.iter().map(size).sum();
    assert!(all < 4_000_000, "the package has {all} bytes");
}

#[test]
fn each_crate_of_the_library_is_a_package_of_its_own() {
    for part in ["collective", "core", "launch", "mpi", "rendezvous"] {
        let files = files(&format!("mpienv-{part}"));
        for file in ["Cargo.toml", "lib.rs", "seam.rs"] {
            let is_there = files.iter().any(|found| found == file);
            assert_eq!(is_there, part != "mpi" || file != "seam.rs", "{part}: {file}");
        }
        assert!(files.iter().all(|file| !file.starts_with("src/")), "{part}: {files:?}");
    }
}

#[test]
fn the_commit_of_the_version_depends_on_every_crate_that_the_command_is_compiled_from() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(top.join(file)).unwrap();
    let (manifest, script) = (read("Cargo.toml"), read("src/build.rs"));
    let (_, package) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = package.split_once("\n[").unwrap();
    let own = dependencies.lines().filter_map(|line| line.strip_prefix("mpienv-"));
    let own: Vec<_> = own.map(|line| line.split(['.', ' ']).next().unwrap()).collect();
    assert!(own.len() > 5, "{own:?}");
    for part in own {
        assert!(
            script.contains(&format!("\"src/{part}\",")),
            "src/build.rs does not list src/{part}"
        );
    }
}
