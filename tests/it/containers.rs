//! How a rank's variables get into a container: Podman for real, and stand-ins for runtimes that
//! neither Debian nor PyPI has.

use std::path::Path;
use std::process::Command;

use crate::support::root::is_root;
use crate::support::script::script;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, is_there, missing};

fn sorted(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let mut lines: Vec<_> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// A container that shares this host's network and programs, and nothing of its environment.
///
/// Its cgroups are disabled: a test needs none, and crun refuses hosts that mix both versions.
const CONTAINER: &str = r#"#!/usr/bin/env bash
file=$1
shift
exec podman --root "$FOLDER/storage" --runroot "$FOLDER/run" --storage-driver vfs run --rm --network host \
    --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --env-file "$file" \
    --volume /usr:/usr:ro --volume "$MPIENV:/opt:ro" --rootfs "$FOLDER/root" "$@"
"#;

/// Prepares a root folder, and hides the cgroups of version 1 from this script alone. Some kernels
/// mount neither version; crun takes an empty tmpfs for version 1.
const PREPARE: &str = r#"
mkdir -p "$FOLDER/root"/{dev,etc,opt,proc,sys,tmp,usr}
for name in bin lib lib64 sbin; do ln -s "usr/$name" "$FOLDER/root/$name"; done
{
    umount --recursive /sys/fs/cgroup || true
    mount -t cgroup2 none /sys/fs/cgroup || mount -t tmpfs none /sys/fs/cgroup || true
} >/dev/null 2>&1
container() { "$FOLDER/container" "$@"; }
export -f container
container /dev/null true >&2 || exit 77
"#;

/// Runs a script with `container ENV_FILE COMMAND...`, as root of its own mount namespace.
fn with_podman(script_text: &str) -> Option<Vec<String>> {
    if !is_there("podman") || !is_there("crun") || !is_there("unshare") || !is_root() {
        return None;
    }
    // Paths of Podman's sockets must be short.
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("container"), CONTAINER);
    let mut command = clean("unshare");
    command.args(["--mount", "bash", "-euc", &format!("{PREPARE}{script_text}")]);
    let mpienv = Path::new(env!("CARGO_BIN_EXE_mpienv")).parent().unwrap();
    command.env("FOLDER", folder.path()).env("MPIENV", mpienv);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        missing(&format!("containers with podman: {stderr}"));
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    let mut lines: Vec<_> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    Some(lines)
}

#[test]
fn ranks_in_podmans_containers_know_their_places_and_meet() {
    if !is_there("mpirun") {
        return;
    }
    let script = format!(
        r#"
        export PLACE='echo $RANK of $WORLD_SIZE, $NCCL_SOCKET_IFNAME, ${{OMPI_COMM_WORLD_RANK-no}} variables of Open MPI'
        mpirun --oversubscribe -n 2 bash -c 'container <(mpienv export --shell docker --nccl-ifname "=ib0 # \"x") sh -c "$PLACE"'
        mpirun --oversubscribe -n 2 bash -c 'container <(mpienv export --shell docker) /opt/mpienv exec -- sh -c "echo exec \$RANK"'
        mpirun --oversubscribe -n 2 bash -c 'container <(mpienv export --shell docker) /opt/mpienv check --timeout {PATIENT}' |
            sed 's/, met at.*//'
        MPIENV_TOKEN=a-secret mpirun --oversubscribe -n 2 \
            bash -c 'container <(mpienv export --shell docker) /opt/mpienv check --timeout {PATIENT}' |
            sed 's/started by.*, //'
        "#
    );
    let Some(lines) = with_podman(&script) else { return };
    for expected in [
        "0 of 2, =ib0 # \"x, no variables of Open MPI",
        "1 of 2, =ib0 # \"x, no variables of Open MPI",
        "exec 0",
        "exec 1",
        "2 ranks on 1 host, started by RANK and WORLD_SIZE",
        "2 ranks on 1 host, with a secret",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
    }
}

/// A stand-in for `apptainer exec --cleanenv IMAGE COMMAND`. Of the host's variables, only those
/// with its prefix reach the container: `SetContainerEnv` in internal/pkg/util/env/create.go of
/// Apptainer 1.5.3, and clean.go of SingularityCE 4.5.1.
const CLEANENV: &str = r#"#!/usr/bin/env bash
prefix=$(basename "$0" | tr a-z A-Z)ENV_
[ "$1 $2 $3" = "exec --cleanenv train.sif" ] || exit 9
shift 3
words=(LANG=C "HOME=$HOME" "PATH=$PATH")
for name in $(compgen -e "$prefix"); do words+=("${name#"$prefix"}=${!name}"); done
exec env -i "${words[@]}" "$@"
"#;

#[test]
fn ranks_in_apptainers_containers_know_their_places_after_cleanenv() {
    for runtime in ["apptainer", "singularity"] {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join(runtime), CLEANENV);
        let run = |export: &str, inside: &str| {
            let mut command = clean("mpienv");
            let line = format!(
                "{export}; exec \"$0/{runtime}\" exec --cleanenv train.sif sh -c '{inside}'"
            );
            command.args([
                "simulate",
                "--launcher",
                "open-mpi",
                "--nodes",
                "2",
                "--ppn",
                "2",
                "--",
            ]);
            command.args(["bash", "-c", &line]).arg(folder.path());
            command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
            sorted(&mut command)
        };
        let export = r#"eval "$(mpienv export --shell apptainer)""#;
        let place = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE";
        let expected: Vec<_> =
            (0..4).map(|rank| format!("[{rank}] {rank} of 4, {} of 2", rank % 2)).collect();
        assert_eq!(run(export, place), expected, "{runtime}");
        let again = format!("mpienv exec -- sh -c \"{}\"", place.replace('$', "\\$"));
        assert_eq!(run(export, &again), expected, "{runtime}");
        let none: Vec<_> = (0..4).map(|rank| format!("[{rank}] 0 of 1")).collect();
        assert_eq!(run("true", "mpienv exec -- sh -c \"echo \\$RANK of \\$WORLD_SIZE\""), none);
    }
}

#[test]
fn what_protects_a_meeting_reaches_containers_and_no_secret_is_printed() {
    let printed = |shell: &str, token: &str| {
        let mut command = clean("mpienv");
        command.args(["export", "-q", "--shell", shell]).env("MPIENV_TOKEN", token);
        let output = command.env("MPIENV_AUTH", "auto").output().unwrap();
        let [text, stderr] =
            [output.stdout, output.stderr].map(|of| String::from_utf8(of).unwrap());
        assert!(!format!("{text}{stderr}").contains(token), "{text}{stderr}");
        (text, stderr)
    };
    let (text, _) = printed("docker", "s3cret");
    assert!(text.ends_with("\nMPIENV_TOKEN\nMPIENV_AUTH\n"), "{text}");
    let (text, _) = printed("apptainer", "s3cret");
    let mut command = clean("sh");
    command.args(["-c", &format!("{text} env")]).env("MPIENV_TOKEN", "s3cret");
    let lines = sorted(command.env("MPIENV_AUTH", "auto"));
    for expected in ["APPTAINERENV_MPIENV_TOKEN=s3cret", "SINGULARITYENV_MPIENV_AUTH=auto"] {
        assert!(lines.iter().any(|line| line == expected), "{lines:#?}");
    }
    // Both programs would evaluate it.
    let (text, stderr) = printed("apptainer", "s3cret$HOME");
    assert_eq!(text, "false;\n");
    assert!(stderr.contains("MPIENV_TOKEN=\"...\" cannot be written as apptainer"), "{stderr}");
}

/// A stand-in for `enroot start`: `runtime::_do_environ`, `_do_hooks` and `common::envfmt` of
/// enroot 4.1.2, and `load_environment_fd` of its bin/common.h, which gives the container the
/// file's variables and no others. `IMAGE` are the lines of the image's /etc/environment.
const ENROOT: &str = r#"
envfmt() {
    sed -i -e 's/^[[:space:]]\+//' -e '/^#\|^$/d' -e '/^[[:alpha:]_][[:alnum:]_]*=/!d' -e '/^ENROOT_/d' \
        -e 's/^\([[:alpha:]_][[:alnum:]_]*\)=[\"\x27]\(.*\)[\"\x27][[:space:]]*$/\1=\2/' "$1"
}
enroot() {
    export ENROOT_ENVIRON; ENROOT_ENVIRON=$(mktemp)
    printf '%s\n' "PATH=$PATH" $IMAGE >"$ENROOT_ENVIRON"
    envfmt "$ENROOT_ENVIRON"
    "$HOOK" >/dev/null || { echo "$HOOK exited with return code $?" >&2; exit 1; }
    envfmt "$ENROOT_ENVIRON"
    mapfile -t words <"$ENROOT_ENVIRON"
    exec env -i "${words[@]}" "$@"
}
"#;

/// What the container of each rank shows of a simulated Slurm job of two nodes.
fn in_enroot(image: &str, start: &str, ranks: &[&str]) -> Vec<String> {
    let place = "echo ${RANK-no} of ${WORLD_SIZE-no}, ${LOCAL_RANK-no} of ${LOCAL_WORLD_SIZE-no} at $MASTER_ADDR:$MASTER_PORT";
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/enroot/50-mpienv.sh");
    let mut command = clean("mpienv");
    command.args(["simulate", "--launcher", "slurm", "--nodes", "2", "--ppn", "2"]).args(ranks);
    command.args(["--", "bash", "-c", &format!("{ENROOT}{start}"), "bash", place]);
    sorted(command.env("HOOK", hook).env("IMAGE", image))
}

#[test]
fn enroots_hook_gives_each_container_its_rank() {
    let shown = in_enroot("", r#"enroot sh -c "$1""#, &[]);
    // All ranks have the same master.
    let (_, master) = shown[0].rsplit_once(" at ").unwrap();
    let expected: Vec<_> =
        (0..4).map(|rank| format!("[{rank}] {rank} of 4, {} of 2 at {master}", rank % 2)).collect();
    assert_eq!(shown, expected);
    // What the image or the user has set stays.
    let own = in_enroot("MASTER_ADDR=own MASTER_PORT=7", r#"enroot sh -c "$1""#, &["--rank", "3"]);
    assert_eq!(own, ["3 of 4, 1 of 2 at own:7"]);
    // The file may hold the name of a secret's file, and not the secret.
    let secret = r#"export MPIENV_AUTH=auto MPIENV_TOKEN=s3cret; enroot sh -c 'echo "$MPIENV_AUTH<$MPIENV_TOKEN>"'"#;
    assert_eq!(in_enroot("", secret, &["--rank", "3"]), ["auto<>"]);
    // A container that is no part of a job gets nothing.
    let alone = format!("unset SLURM_STEP_ID; {}", r#"enroot sh -c "$1""#);
    assert_eq!(in_enroot("", &alone, &["--rank", "3"]), ["no of no, no of no at :"]);
}

#[test]
fn a_container_starts_on_a_host_that_has_no_mpienv() {
    let without = format!("PATH=/usr/bin:/bin; {}", r#"enroot sh -c "$1""#);
    assert_eq!(in_enroot("", &without, &["--rank", "3"]), ["no of no, no of no at :"]);
}

#[test]
fn enroots_hook_gives_pyxis_what_the_tasks_of_a_node_share() {
    // pyxis starts one container on each node without these variables (`enroot_deny_env` in
    // pyxis_slurmstepd.c of pyxis 0.24.0), and sets RANK and LOCAL_RANK for each task itself.
    let pyxis = r#"unset SLURM_PROCID SLURM_LOCALID PMIX_RANK; enroot sh -c "$1""#;
    for rank in ["0", "3"] {
        let shown = in_enroot("", pyxis, &["--rank", rank]);
        assert!(shown[0].starts_with("no of 4, no of 2 at node0:"), "{shown:?}");
    }
    let without = format!("unset SLURM_GTIDS; {pyxis}");
    assert_eq!(in_enroot("", &without, &["--rank", "3"]), ["no of no, no of no at :"]);
}
