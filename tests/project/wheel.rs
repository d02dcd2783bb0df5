//! The wheel: built, installed into a fresh Python environment, and used as a Python user does.

use std::path::Path;
use std::process::Command;

use crate::support::python::from_python;
use crate::support::tool::{clean, inherited, is_there};

fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// What a user's script finds; a line is one write, so that those of two ranks do not mix.
const TRAIN: &str = r#"
import os, sys
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
os.write(1, (" ".join(os.environ[name] for name in names) + f" {sys.argv[1]}\n").encode())
"#;

#[test]
fn a_wheel_carries_the_command_to_those_who_have_pip() {
    if !is_there("python3") || !is_there("mpirun") {
        return;
    }
    let Some(maturin) = from_python("maturin", "maturin") else { return };
    let folder = tempfile::tempdir().unwrap();

    // The same profile and features as the command under test: nothing is compiled twice.
    let mut build = clean(maturin.to_str().unwrap());
    for name in ["CARGO_HOME", "RUSTUP_HOME"] {
        build.envs(inherited(name).map(|value| (name, value)));
    }
    // maturin moves the program away from where cargo puts it, where other tests look for the command.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    build.env("CARGO_BUILD_BUILD_DIR", target).env("CARGO_TARGET_DIR", target.join("wheel"));
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".python"));
    build.args(["build", "--profile", "dev", "--all-features", "--auditwheel", "skip", "--out"]).arg(folder.path());
    succeeded(&mut build);
    let wheels: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [wheel] = &wheels[..] else { panic!("{wheels:?}") };
    let prefix = format!("mpienv-{}-py3-none-", env!("CARGO_PKG_VERSION"));
    assert!(wheel.file_name().unwrap().to_str().unwrap().starts_with(&prefix), "{wheel:?}");

    let home = folder.path().join("venv");
    succeeded(clean("python3").args(["-m", "venv"]).arg(&home));
    let bin = home.join("bin");
    let pip = bin.join("pip");
    succeeded(clean(pip.to_str().unwrap()).args(["install", "--no-index", "--quiet"]).arg(wheel));
    assert!(home.join("share/man/man1/mpienv.1").is_file());
    assert!(home.join("share/bash-completion/completions/mpienv").is_file());

    std::fs::write(folder.path().join("train.py"), TRAIN).unwrap();
    let path = inherited("PATH").unwrap_or_default();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut command = clean("bash");
    command.env("PATH", path).env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let words =
        "command -v mpienv; mpirun -n 2 --oversubscribe mpienv exec --master-port 29500 -- python train.py --lr=0.1";
    let text = succeeded(command.args(["-c", words]).current_dir(folder.path()));
    let mut lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.remove(0), home.join("bin/mpienv").to_str().unwrap());
    lines.sort_unstable();
    assert_eq!(lines, ["0 2 0 127.0.0.1 29500 --lr=0.1", "1 2 1 127.0.0.1 29500 --lr=0.1"]);
}
