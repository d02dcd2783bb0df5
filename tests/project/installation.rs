//! What administrators install mpienv with: a modulefile, an EasyBuild easyconfig, a Spack recipe.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::support::python::from_python;
use crate::support::script::script;
use crate::support::tool::{clean, is_there};

fn recipe(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".recipes").join(file)
}

#[test]
fn the_modulefile_puts_the_command_and_its_completions_where_shells_look() {
    if !is_there("modulecmd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (bin, share, site) = (root.join("bin"), root.join("share"), root.join("site"));
    let installed = share.join("modulefiles/mpienv/0.1.0");
    for folder in [&bin, installed.parent().unwrap(), &site.join("mpienv")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy(recipe("modulefile/mpienv"), &installed).unwrap();
    symlink(&installed, site.join("mpienv/0.1.0")).unwrap();
    script(&bin.join("mpienv"), "#!/bin/sh\necho from the module\n");
    let script =
        r#"eval "$(modulecmd bash load mpienv/0.1.0)"; mpienv; echo "$XDG_DATA_DIRS $MANPATH""#;
    let folders = [share.join("modulefiles"), site];
    // A variable that is empty means the same as one that is not set.
    for (modules, empty) in folders.iter().flat_map(|folder| [(folder, false), (folder, true)]) {
        let mut command = clean("bash");
        command.args(["-c", script]).env_remove("MANPATH").env_remove("XDG_DATA_DIRS");
        if empty {
            command.env("MANPATH", "").env("XDG_DATA_DIRS", "");
        }
        command.env("MODULEPATH", modules);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let share = share.display();
        // The empty entry at the end of MANPATH is that of the system's folders.
        let expected =
            format!("from the module\n{share}:/usr/local/share:/usr/share {share}/man:\n");
        assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), &*said), (&*expected, ""));
    }
}

#[test]
fn a_modules_setting_gives_way_to_a_users_own_and_goes_when_it_is_unloaded() {
    if !is_there("modulecmd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("share/modulefiles");
    fs::create_dir_all(&modules).unwrap();
    let text = fs::read_to_string(recipe("modulefile/mpienv")).unwrap();
    fs::write(modules.join("mpienv"), text.replace("# default ", "default ")).unwrap();
    let show = r#"echo "${MPIENV_AUTH-unset} ${MPIENV_NCCL_IFNAME-unset}""#;
    let script =
        ["load", "unload"].map(|verb| format!("eval \"$(modulecmd bash {verb} mpienv)\"; {show};"));
    for (auth, expected) in
        [(None, "auto unset\nunset unset\n"), (Some("munge"), "munge unset\nmunge unset\n")]
    {
        let mut command = clean("bash");
        command.args(["-c", &script.concat()]).env("MODULEPATH", &modules);
        let output = command.envs(auth.map(|auth| ("MPIENV_AUTH", auth))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    }
}

#[test]
fn easybuild_reads_its_easyconfig() {
    let Some(eb) = from_python("easybuild", "eb") else { return };
    if !is_there("modulecmd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // EasyBuild looks for Environment Modules where its own installation would be.
    fs::create_dir(folder.path().join("libexec")).unwrap();
    let modules = folder.path().join("libexec/modulecmd.tcl");
    symlink("/usr/lib/x86_64-linux-gnu/modulecmd.tcl", modules).unwrap();
    let mut command = clean(eb.to_str().unwrap());
    command.env("MODULESHOME", folder.path()).env("HOME", folder.path());
    command.env("EB_PYTHON", eb.with_file_name("python"));
    command.args(["--allow-use-as-root-and-accept-consequences", "--module-syntax=Tcl"]);
    command.args(["--modules-tool=EnvironmentModules", "--dry-run"]);
    let output = command.arg(recipe("easybuild/mpienv-0.1.0.eb")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("mpienv-0.1.0.eb (module: mpienv/0.1.0-GCCcore-"), "{said}");
}

/// What is in a folder: the paths below it, sorted. Panics if other users cannot read it.
fn readable_files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let mode = path.metadata().unwrap().permissions().mode();
            let needed = if path.is_dir() { 0o755 } else { 0o644 };
            assert_eq!(mode & needed, needed, "{} has mode {mode:o}", path.display());
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn run_in_the_project(umask: &str, commands: &str) {
    let mut bash = clean("bash");
    bash.args(["-ec", &format!("umask {umask}\n{commands}")]);
    assert!(bash.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(), "{commands}");
}

#[test]
fn all_users_can_read_what_the_guides_commands_and_easybuild_install() {
    let folder = tempfile::tempdir().unwrap();
    let (by_hand, easybuild) = (folder.path().join("hand"), folder.path().join("eb"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/administrators.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```text\n$ version=").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let commands = format!("version={block}").replace("\n$ ", "\n");
    // Instead of compiling: Cargo makes the folder with the umask of the user.
    let (before, after) = commands.split_once("cargo install ").unwrap();
    let after = after.split_once('\n').unwrap().1;
    let commands = format!("{before}mkdir -p $to/bin\n{after}");
    run_in_the_project("077", &commands.replace("/opt/mpienv", by_hand.to_str().unwrap()));
    let installed = fs::read_dir(&by_hand).unwrap().next().unwrap().unwrap().path();
    let mut files = readable_files(&installed);
    let mode = by_hand.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o755, 0o755, "{mode:o}");
    let documents = installed.join("share/doc/mpienv");
    for file in ["src/guide/hangs.md", "examples/slurm/srun.sbatch", "LICENSE-MIT", "README.md"] {
        assert!(documents.join(file).is_file(), "{file}");
    }

    if is_there("python3") {
        let mut python = clean("python3");
        let program = "import sys; SOURCE_TAR_GZ = ''; exec(open(sys.argv[1]).read()); \
                       print('\\n'.join(postinstallcmds))";
        let output = python.args(["-c", program]).arg(recipe("easybuild/mpienv-0.1.0.eb")).output();
        let commands = String::from_utf8(output.unwrap().stdout).unwrap();
        fs::create_dir(&easybuild).unwrap();
        run_in_the_project("022", &commands.replace("%(installdir)s", easybuild.to_str().unwrap()));
        // EasyBuild writes a module of its own.
        files.retain(|file| !file.starts_with("share/modulefiles"));
        assert_eq!(readable_files(&easybuild), files);
    }
}

#[test]
fn the_recipes_name_this_version_its_features_and_the_oldest_compiler() {
    let (version, rust) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_RUST_VERSION"));
    let spack = fs::read_to_string(recipe("spack/package.py")).unwrap();
    for line in [
        format!("version(\"{version}\")"),
        format!("depends_on(\"rust@{rust}:\", type=\"build\")"),
        "build_args = [\"--locked\", \"--features\", \"gpu\"]".to_owned(),
    ] {
        assert!(spack.contains(&line), "{line}: {spack}");
    }
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "guide", "examples"]
    {
        assert!(spack.contains(&format!("\"{name}\"")), "{name}: {spack}");
    }
    let easybuild = fs::read_to_string(recipe("easybuild/mpienv-0.1.0.eb")).unwrap();
    assert!(easybuild.contains(&format!("\nversion = '{version}'\n")), "{easybuild}");
    assert!(easybuild.contains("\ninstallopts = '--locked --features gpu'\n"), "{easybuild}");
    let (_, found) = easybuild.split_once("('Rust', '1.").unwrap();
    let found: u32 = found.split('.').next().unwrap().parse().unwrap();
    let oldest: u32 = rust.split('.').nth(1).unwrap().parse().unwrap();
    assert!(found >= oldest, "{found}");
    if is_there("python3") {
        let mut python = clean("python3");
        python.args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"]);
        assert!(python.arg(recipe("spack/package.py")).status().unwrap().success());
    }
}
