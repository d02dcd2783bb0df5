//! The wheel: built, installed into new Python environments, and used as a Python user would.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use crate::support::cargo::with_cargo;
use crate::support::python::from_python;
use crate::support::script::script;
use crate::support::tool::{clean, inherited, is_there};

pub(super) fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The wheel, built once; `None` if something that it needs is missing.
fn wheel() -> Option<&'static Path> {
    static WHEEL: LazyLock<Option<PathBuf>> = LazyLock::new(build);
    WHEEL.as_deref()
}

fn build() -> Option<PathBuf> {
    if !is_there("python3") || !is_there("mpirun") {
        return None;
    }
    let mut build = build_of("--wheel")?;
    // What the tests have compiled, so that only the library is compiled.
    let words = "--workspace --all-features --lib --bins --tests";
    build.arg(format!("--config-setting=--build-option='--cargo={words}'"));
    let wheel = &built(&mut build, "wheel");
    let prefix = format!("mpienv_rs-{}-py3-none-", env!("CARGO_PKG_VERSION"));
    assert!(wheel.file_name().unwrap().to_str().unwrap().starts_with(&prefix), "{wheel:?}");
    Some(wheel.clone())
}

/// A build of the Python package by the tool `build`: of an sdist or a wheel.
fn build_of(kind: &str) -> Option<Command> {
    let mut build = with_cargo(from_python("build", "python")?.to_str().unwrap());
    build.args(["-m", "build", "--no-isolation", kind]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/python"));
    Some(build)
}

/// The only file that a build writes.
fn built(build: &mut Command, folder: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    succeeded(build.arg("--outdir").arg(&folder));
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    file.clone()
}

#[test]
fn an_sdist_carries_the_whole_workspace() {
    let Some(mut build) = build_of("--sdist") else { return };
    if !is_there("git") {
        return;
    }
    let file = built(&mut build, "sdist");
    let folder = tempfile::tempdir().unwrap();
    succeeded(clean("tar").arg("-xzf").arg(file).arg("-C").arg(folder.path()));
    let unpacked = folder.path().join(concat!("mpienv_rs-", env!("CARGO_PKG_VERSION")));
    assert!(unpacked.join("setup.py").is_file() && unpacked.join("mpienv_rs/py.typed").is_file());
    assert!(unpacked.join("project/.dist/data/share/man/man1/mpienv.1").is_file());
    let mut cargo = with_cargo(env!("CARGO"));
    // A machine may lack the crates that only other systems need.
    let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo.args(["metadata", "--locked", "--offline", "--format-version", "1", &platform]);
    let known = succeeded(cargo.current_dir(unpacked.join("project")));
    assert!(known.contains("mpienv-torch"), "{known}");
}

#[test]
fn a_build_without_rust_says_what_is_missing() {
    let Some(mut build) = build_of("--wheel") else { return };
    let path = tempfile::tempdir().unwrap();
    build.env_remove("CARGO").env_remove("RUSTC").env("PATH", path.path());
    build.arg("--outdir").arg(path.path());
    for program in ["cargo", "rustc"] {
        let output = build.output().unwrap();
        let said = format!(
            "\nmpienv-rs: {program} is not on PATH: it takes Rust {} or newer",
            env!("CARGO_PKG_RUST_VERSION")
        );
        assert!(!output.status.success(), "{program}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(&said), "{program}: {output:?}");
        symlink(env!("CARGO"), path.path().join(program)).unwrap();
    }
}

/// An environment with only pip and the wheel, created once.
fn environment() -> Option<&'static Path> {
    static HOME: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let wheel = wheel()?;
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheel.venv");
        succeeded(clean("python3").args(["-m", "venv", "--clear"]).arg(&home));
        let pip = home.join("bin/pip");
        succeeded(
            clean(pip.to_str().unwrap()).args(["install", "--no-index", "--quiet"]).arg(wheel),
        );
        Some(home)
    });
    HOME.as_deref()
}

/// A folder, and an environment with the wheel.
pub(super) struct Fresh {
    pub(super) folder: tempfile::TempDir,
    home: PathBuf,
}

impl Fresh {
    /// Uses the environment of all tests, which only read it.
    pub(super) fn new() -> Option<Fresh> {
        Some(Fresh { folder: tempfile::tempdir().unwrap(), home: environment()?.to_owned() })
    }

    /// Uses a separate environment, for tests that change it or need another Python.
    fn of(python: &str) -> Option<Fresh> {
        let (folder, shared) = (tempfile::tempdir().unwrap(), environment()?);
        let fresh = Fresh { home: folder.path().join("venv"), folder };
        succeeded(clean(python).args(["-m", "venv", "--without-pip"]).arg(&fresh.home));
        let mut pip = clean(shared.join("bin/pip").to_str().unwrap());
        pip.arg("--python").arg(fresh.bin().join("python")).args([
            "install",
            "--no-index",
            "--quiet",
        ]);
        succeeded(pip.arg(wheel()?));
        Some(fresh)
    }

    pub(super) fn bin(&self) -> PathBuf {
        self.home.join("bin")
    }

    /// A program with the environment's own folder first on PATH, run in a folder that has
    /// `train.py`.
    pub(super) fn command(&self, program: &str) -> Command {
        let path = inherited("PATH").unwrap_or_default();
        let path =
            std::env::join_paths([self.bin()].into_iter().chain(std::env::split_paths(&path)))
                .unwrap();
        let mut command = clean(program);
        command
            .env("PATH", path)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.current_dir(self.folder.path());
        command
    }

    /// The output of a script.
    pub(super) fn python(&self, script: &str) -> Output {
        self.command(self.bin().join("python").to_str().unwrap())
            .args(["-c", script])
            .output()
            .unwrap()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }
}

/// The lines of two ranks, which come in any order.
pub(super) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// What a user's script finds. Each line is one write, so that the lines of two ranks do not mix.
const TRAIN: &str = r#"
import os, sys
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
os.write(1, (" ".join(os.environ[name] for name in names) + f" {sys.argv[1]}\n").encode())
"#;

#[test]
fn a_wheel_carries_the_command_to_those_who_have_pip() {
    let Some(fresh) = Fresh::new() else { return };
    assert!(fresh.home.join("share/man/man1/mpienv.1").is_file());
    assert!(fresh.home.join("share/bash-completion/completions/mpienv").is_file());

    fresh.write("train.py", TRAIN);
    let words = "command -v mpienv; mpirun -n 2 --oversubscribe mpienv exec --master-port 29500 -- python train.py --lr=0.1";
    let text = succeeded(fresh.command("bash").args(["-c", words]));
    let (first, rest) = text.split_once('\n').unwrap();
    assert_eq!(first, fresh.bin().join("mpienv").to_str().unwrap());
    assert_eq!(sorted(rest), ["0 2 0 127.0.0.1 29500 --lr=0.1", "1 2 1 127.0.0.1 29500 --lr=0.1"]);
    let version = succeeded(fresh.command("python").args(["-m", "mpienv_rs", "--version"]));
    // A wheel that is built in a checkout also names the commit.
    let rest = version.strip_prefix(concat!("mpienv ", env!("CARGO_PKG_VERSION")));
    assert!(rest.is_some_and(|rest| rest == "\n" || rest.starts_with(" (")), "{version}");
}

const OTHER: &str = "#!/usr/bin/python3\nprint('the other one')\n";

#[test]
fn the_other_mpienv_of_pypi_is_named_and_never_run() {
    let Some(fresh) = Fresh::of("python3") else { return };
    let command = fresh.bin().join("mpienv");
    script(&command, OTHER);
    // No other mpienv on PATH: otherwise the one that the tests built would be used.
    let run = |words: &[&str]| {
        let mut python = Command::new(fresh.bin().join("python"));
        let output = python.env_clear().env("PATH", fresh.bin()).args(words).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // The package is not on PyPI, where a stranger could take its name.
    let remedy = "run `pip install --force-reinstall ./src/python` in the project's folder";
    for words in [&["-m", "mpienv_rs", "show"][..], &["-c", "import mpienv_rs; mpienv_rs.info()"]] {
        let text = run(words);
        assert!(
            text.contains(&format!("{} is the command of PyPI's mpienv", command.display())),
            "{text}"
        );
        assert!(text.contains(&format!("run `pip uninstall mpienv`, then {remedy}")), "{text}");
    }
    fs::remove_file(&command).unwrap();
    let missing = format!("the command mpienv is not installed; {remedy}");
    assert!(run(&["-m", "mpienv_rs", "show"]).contains(&missing));
}

/// Every name of the module.
#[test]
fn every_python_of_this_machine_that_is_new_enough_takes_the_module() {
    let mut taken = Vec::new();
    for minor in [9, 12, 13, 14] {
        let python = format!("python3.{minor}");
        let is_new = |output: Output| {
            String::from_utf8_lossy(&output.stdout).starts_with(&format!("Python 3.{minor}."))
        };
        if !clean(&python).arg("--version").output().is_ok_and(is_new) {
            continue;
        }
        let Some(fresh) = Fresh::of(&python) else { return };
        let output = fresh.python(
            "import mpienv_rs; print(mpienv_rs.export().world_size, mpienv_rs.find_command())",
        );
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("1 {}\n", fresh.bin().join("mpienv").display()), "{python}");
        taken.push(python);
    }
    eprintln!("besides python3: {taken:?}");
}
