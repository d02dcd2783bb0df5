//! `mpienv check --gpu` with stand-ins for NVIDIA's driver, NVRTC and NCCL, which compute on the CPU. No GPU is tested here, and
//! speeds mean nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::copy::copy_for_all_users;
use crate::support::gpu::{NVRTC, built, with_gpus};
use crate::support::timeout::in_time;
use crate::support::tool::clean;

/// The ranks of one simulated host with as many devices, and what each of them runs. `None` if gcc is
/// missing.
fn ranks(count: u32, left_out: &[&str], script: &str) -> Option<Command> {
    let mut command = clean("mpienv");
    command.args(["simulate", "--launcher", "slurm", "--nodes", "1", "--ppn", &count.to_string()]);
    command.args(["--", "sh", "-c", script]).env("STAND_IN_DEVICES", count.to_string());
    with_gpus(&mut command, left_out)?;
    Some(command)
}

const CHECK: &str = "exec mpienv check --gpu --gpu-bytes 100k --timeout 60";

/// What rank 0 prints on stdout, without its number, and the exit code of the job.
fn printed(command: &mut Command) -> (String, Option<i32>) {
    let Output { stdout, stderr, status } = command.output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("[0] "));
    let mut text: String = lines.map(|line| format!("{line}\n")).collect();
    text += &String::from_utf8_lossy(&stderr);
    (text, status.code())
}

#[test]
fn each_gpu_computes_alone_and_with_the_others_and_every_number_is_right() {
    let Some(mut command) = ranks(4, &[], &format!("{CHECK} --json --bad-hosts $TMPDIR/bad"))
    else {
        return;
    };
    let (text, code) = printed(&mut command);
    assert_eq!(code, Some(0), "{text}");
    let map: Value = serde_json::from_str(&text).unwrap();
    let gpu = &map["gpu"];
    let all = gpu["ranks"].as_array().unwrap();
    assert_eq!((all.len(), &map["findings"]), (4, &Value::Array(Vec::new())), "{text}");
    for (rank, own) in all.iter().enumerate() {
        let device = &own["device"];
        assert_eq!((&device["ordinal"], &device["driver"]), (&rank.into(), &"13.0".into()));
        assert_eq!(
            (&device["compute_capability"], &own["nccl"]),
            (&"9.0".into(), &"2.28.9".into())
        );
        let rates = [&own["multiply_adds_per_s"], &own["bytes_copied_per_s"]];
        assert!(rates.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{own}");
    }
    let nccl = &gpu["nccl"];
    let sums = nccl["sums"].as_array().unwrap();
    let sizes: Vec<_> = sums.iter().map(|sum| sum["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 64, 512, 4096, 32_768, 100_000]);
    assert!(sums.iter().all(|sum| sum["is_right"] == true), "{text}");
    // Each rank with its two neighbors.
    let pairs = nccl["pairs"].as_array().unwrap().iter().map(|pair| pair["ranks"].to_string());
    assert_eq!(pairs.collect::<Vec<_>>(), ["[0,1]", "[2,3]", "[1,2]", "[3,0]"]);
    assert_eq!((&nccl["network"], &nccl["interfaces"]), (&"Socket".into(), &["lo"][..].into()));
    assert_eq!(nccl["paths"].as_array().unwrap().len(), 4);
}

#[test]
fn a_rank_whose_log_is_the_users_leaves_the_others_their_numbers() {
    let script = format!("test $SLURM_PROCID != 0 || export NCCL_DEBUG=WARN; {CHECK} --json");
    let Some(mut command) = ranks(3, &[], &script) else { return };
    let (text, code) = printed(&mut command);
    assert_eq!(code, Some(0), "{text}");
    let map: Value = serde_json::from_str(&text).unwrap();
    let paths = map["gpu"]["nccl"]["paths"].as_array().unwrap().iter();
    let paths: Vec<_> = paths.map(|path| (path["from"].clone(), path["to"].clone())).collect();
    assert_eq!(paths, [(1.into(), 2.into()), (2.into(), 0.into())], "{text}");
}

#[test]
fn the_file_of_bad_hosts_has_slurms_name_of_the_node_which_may_not_be_the_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad");
    let script = format!(
        "export SLURMD_NODENAME=gpu07 STAND_IN_FAIL=cuModuleLoadData=222; {CHECK} --bad-hosts {}",
        file.display()
    );
    let Some(mut command) = ranks(2, &[], &script) else { return };
    let (text, code) = printed(&mut command);
    assert_eq!((code, &*fs::read_to_string(&file).unwrap()), (Some(3), "gpu07\n"), "{text}");
}

#[test]
fn one_rank_is_tested_too_and_nothing_is_left_of_nccls_log() {
    let mut command = clean("mpienv");
    let Some(command) = with_gpus(&mut command, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad");
    command.args(["check", "--gpu", "--gpu-bytes", "64", "--bad-hosts"]).arg(&bad);
    let own = command.env("TMPDIR", folder.path()).output().unwrap();
    let text = String::from_utf8(own.stdout).unwrap();
    assert!(own.status.success(), "{text}{}", String::from_utf8_lossy(&own.stderr));
    assert!(text.contains("\ngpu: 1 rank, Stand-in GPU, driver 13.0, NCCL 2.28.9\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("64 ") && line.ends_with(" right")), "{text}");
    // No host is to blame.
    assert_eq!(fs::read_to_string(&bad).unwrap(), "");
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|own| own.unwrap().path()).collect();
    assert_eq!(left, [bad]);
}

/// `check --gpu` of one rank, whose command is in the `bin` of a folder. Only the driver is where
/// the loader looks.
fn from_bin(folder: &Path) -> Option<(String, Option<i32>)> {
    fs::create_dir(folder.join("bin")).unwrap();
    let program = copy_for_all_users(env!("CARGO_BIN_EXE_mpienv"), &folder.join("bin"));
    let mut command = clean(program.to_str().unwrap());
    with_gpus(&mut command, &["nccl", "nvrtc"])?;
    let own = command.args(["check", "--gpu", "--gpu-bytes", "64"]).output().unwrap();
    let text = String::from_utf8(own.stdout).unwrap() + &String::from_utf8_lossy(&own.stderr);
    Some((text, own.status.code()))
}

#[test]
fn the_nccl_and_nvrtc_of_pytorch_are_found_in_the_virtual_environment_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let Some(built) = built() else { return };
    let packages = folder.path().join("lib/python3.12/site-packages/nvidia");
    for (from, package, name) in
        [("nccl/libnccl.so.2", "nccl", "libnccl.so.2"), ("nvrtc/libnvrtc.so", "cu13", NVRTC)]
    {
        let into = packages.join(package).join("lib");
        fs::create_dir_all(&into).unwrap();
        fs::copy(built.join(from), into.join(name)).unwrap();
    }
    let Some((text, code)) = from_bin(folder.path()) else { return };
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\ngpu: 1 rank, Stand-in GPU, driver 13.0, NCCL 2.28.9\n"), "{text}");
}

#[test]
fn where_nccl_and_nvrtc_were_looked_for_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some((text, code)) = from_bin(folder.path()) else { return };
    assert_eq!(code, Some(3), "{text}");
    let looked = format!(
        " and of the system, and {}/lib/python*/site-packages/nvidia/*/lib does not have it",
        folder.path().canonicalize().unwrap().display()
    );
    for (file, package) in
        [("libnccl.so.2", "nvidia-nccl-cu13"), ("libnvrtc.so", "nvidia-cuda-nvrtc ")]
    {
        assert!(text.contains(&format!("the loader found no {file} in the folders")), "{text}");
        assert!(text.contains(&looked) && text.contains(package), "{text}");
    }
}

/// `check --gpu` of one rank, of whose stand-ins this is set. `None` if gcc is missing.
fn alone(name: &str, value: &str) -> Option<(String, Option<i32>)> {
    let mut command = clean("mpienv");
    let command = with_gpus(&mut command, &[])?;
    let own = command.args(["check", "--gpu", "--gpu-bytes", "64"]).env(name, value);
    let Output { stdout, stderr, status } = own.output().unwrap();
    let text = String::from_utf8(stdout).unwrap() + &String::from_utf8_lossy(&stderr);
    Some((text, status.code()))
}

/// The calls in the order in which each first comes.
const CALLS: [&str; 38] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemGetInfo",
    "cuDevicePrimaryCtxRelease",
    "cuCtxSynchronize",
    "cuStreamCreate",
    "ncclGetVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetPTX",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuMemAlloc",
    "cuEventCreate",
    "cuMemcpyHtoDAsync",
    "cuEventRecord",
    "cuMemsetD8Async",
    "cuStreamSynchronize",
    "cuLaunchKernel",
    "cuMemcpyDtoHAsync",
    "cuMemFree",
    "cuModuleUnload",
    "cuMemcpyDtoDAsync",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclAllReduce",
    "cuEventQuery",
    "ncclCommAbort",
    "cuStreamDestroy",
];

#[test]
fn the_libraries_are_called_in_order_and_what_was_made_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let Some((text, code)) = alone("STAND_IN_LOG", log.to_str().unwrap()) else { return };
    assert_eq!(code, Some(0), "{text}");
    let log = fs::read_to_string(log).unwrap();
    let mut first: Vec<&str> = Vec::new();
    log.lines().for_each(|call| {
        if !first.contains(&call) {
            first.push(call);
        }
    });
    assert_eq!(first, CALLS);
    let count = |call: &str| log.lines().filter(|line| *line == call).count();
    for (makes, gives_back) in [
        ("cuMemAlloc", "cuMemFree"),
        ("cuStreamCreate", "cuStreamDestroy"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"),
        ("ncclCommInitRankConfig", "ncclCommAbort"),
    ] {
        assert_eq!(count(makes), count(gives_back), "{makes}");
    }
    // To free what NCCL sums can wait for NCCL, which after a failure waits for the other ranks.
    assert!(log.rfind("\nncclCommAbort\n") < log.rfind("\ncuMemFree\n"), "{log}");
}

#[test]
fn a_call_that_fails_is_an_error_that_names_the_rank_and_the_library() {
    for call in CALLS {
        // What only gives something back has nothing to tell.
        let gives_back =
            ["cuDevicePrimaryCtxRelease", "ncclCommAbort", "cuStreamDestroy"].contains(&call);
        // One that each library has.
        let code = match &call[..2] {
            "cu" => 999,
            "nv" => 6,
            _ => 3,
        };
        let Some((text, exit)) = alone("STAND_IN_FAIL", &format!("{call}={code}")) else { return };
        assert_eq!(exit, Some(if gives_back { 0 } else { 3 }), "{call}: {text}");
        let library = match &call[..2] {
            "cu" => "the driver says CUDA_ERROR_999",
            "nv" => "NVRTC cannot compile the kernels",
            _ => "NCCL",
        };
        let error = text.lines().find(|line| line.starts_with("error ["));
        let is_named =
            error.is_some_and(|line| line.contains(": rank 0 on ") && line.contains(library));
        assert!(is_named != gives_back && !text.contains("panicked"), "{call}: {text}");
    }
}

#[test]
fn a_compiler_that_does_not_know_the_gpu_compiles_for_an_older_one() {
    for (fail, code) in [("nvrtcCompileProgram=5#1", Some(0)), ("nvrtcCompileProgram=5", Some(3))] {
        let Some((text, exit)) = alone("STAND_IN_FAIL", fail) else { return };
        assert_eq!(exit, code, "{text}");
        assert_eq!(text.contains("this is a stand-in's error"), code != Some(0), "{text}");
    }
}

#[test]
fn what_nccl_would_refuse_is_an_error_that_names_the_ranks_before_nccl_starts() {
    let folder = tempfile::tempdir().unwrap();
    let host = mpienv::host_name().unwrap();
    let cases: [(&[&str], &str, String); 7] = [
        (
            &[],
            "CUDA_VISIBLE_DEVICES=0",
            format!("error [gpu-shared]: ranks 0-1 on {host} use the same GPU, GPU-"),
        ),
        (&["nccl"], "true", format!("error [nccl-missing]: ranks 0-1 on {host}: ")),
        (&["cuda"], "true", format!("error [gpu-missing]: ranks 0-1 on {host}: ")),
        (
            &[],
            "test $SLURM_PROCID = 0 || STAND_IN_NCCL=21805",
            format!(
                "error [nccl-versions-differ]: NCCL is not the same on all ranks: 2.28.9 (rank 0 on \
                 {host}); 2.18.5 (rank 1 on {host})"
            ),
        ),
        (
            &[],
            "test $SLURM_PROCID = 0 || STAND_IN_DEVICES=1",
            format!(
                "error [gpu-missing]: rank 1 on {host}: rank 1 (local rank 1) has no GPU: it sees"
            ),
        ),
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: the library does not fit the kernel's module.
        (&[], "STAND_IN_FAIL=cuInit=803", format!("error [gpu-missing]: ranks 0-1 on {host}: ")),
        (
            &[],
            "test $SLURM_PROCID = 0 || STAND_IN_FAIL=cuModuleLoadData=222",
            format!("error [gpu-failed]: rank 1 on {host}: "),
        ),
    ];
    for (number, (left_out, change, finding)) in cases.into_iter().enumerate() {
        let log = folder.path().join(number.to_string());
        let script = format!(
            "export STAND_IN_NCCL STAND_IN_FAIL STAND_IN_DEVICES; {change}; export CUDA_VISIBLE_DEVICES; {CHECK}"
        );
        let script = match change.starts_with("CUDA") {
            true => script,
            false => script.replace("export CUDA_VISIBLE_DEVICES; ", ""),
        };
        let Some(mut command) = ranks(2, left_out, &script) else { return };
        let (text, code) = printed(command.env("STAND_IN_LOG", &log));
        assert!(text.contains(&finding), "{finding}\n{text}");
        assert!(text.contains("NCCL was not started\n") && code == Some(3), "{code:?} {text}");
        let calls = fs::read_to_string(&log).unwrap_or_default();
        assert!(!calls.contains("ncclGetUniqueId"), "{calls}");
    }
}

#[test]
fn two_ranks_share_a_gpu_if_nccl_takes_them_for_two_hosts() {
    let script = format!("CUDA_VISIBLE_DEVICES=0 NCCL_HOSTID=h$SLURM_PROCID {CHECK}");
    let Some(mut command) = ranks(2, &[], &script) else { return };
    let (text, code) = printed(&mut command);
    assert!(
        text.contains("note [gpu-shared]: ranks 0-1 on ") && code == Some(0),
        "{code:?} {text}"
    );
    assert!(text.contains("NET/Socket/0: ranks 0 to 1, 1 to 0\n"), "{text}");
}

#[test]
fn where_nccl_fails_all_ranks_end_and_the_reason_is_explained() {
    let fails = |change: &str, timeout: &str| {
        let check = CHECK.replace("--timeout 60", &format!("--timeout {timeout}"));
        let mut command = ranks(3, &[], &format!("export {change}; {check}"))?;
        let (text, code) = printed(&mut command);
        assert!([Some(3), Some(124)].contains(&code), "{text}");
        Some(text)
    };
    let Some(text) = fails("NCCL_SOCKET_IFNAME==nothing0", "60") else { return };
    assert!(
        text.contains("error [nccl-failed]: ") && text.contains("no socket interface"),
        "{text}"
    );
    assert!(text.contains("NCCL_SOCKET_IFNAME leaves it no interface"), "{text}");
    let ends = |change: &str| {
        let job = |timeout: u32| fails(change, &timeout.to_string()).unwrap();
        in_time(job, |text| text.contains("[nccl-failed]"))
    };
    // NCCL refuses a sum on rank 1 alone: the others wait for it no longer than for the ranks.
    let refused = "$(test $SLURM_PROCID = 1 && echo STAND_IN_FAIL=ncclAllReduce=5 || echo A=)";
    let text = ends(refused);
    assert!(text.contains("error [nccl-failed]: ") && text.contains("rank 1 on "), "{text}");
    // The driver fails on rank 1 alone, after NCCL has begun to sum.
    let own = "$TMPDIR/log-$SLURM_PROCID STAND_IN_FAIL=cuEventRecord=999@ncclAllReduce";
    let driver = format!("$(test $SLURM_PROCID = 1 && echo STAND_IN_LOG={own} || echo A=)");
    let text = ends(&driver);
    let said = "CUDA_ERROR_999";
    assert!(text.contains("error [nccl-failed]: ") && text.contains(said), "{text}");
    // A sum that never ends.
    let text = ends("STAND_IN_STUCK=1");
    assert!(text.contains("error [nccl-failed]: ") && text.contains("NCCL did not sum"), "{text}");
}

#[test]
fn a_rank_that_is_killed_meanwhile_is_named_by_the_others() {
    // Rank 1 dies while all sum, which never ends.
    let script = format!(
        "test $SLURM_PROCID = 1 || {CHECK}; export STAND_IN_STUCK=1; \
         mpienv check --gpu --gpu-bytes 100k & own=$!; \
         until grep -q ncclAllReduce $STAND_IN_LOG; do sleep 0.05; done; kill -9 $own; wait; exit 0"
    );
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = ranks(2, &[], &script) else { return };
    let (text, code) = printed(command.env("STAND_IN_LOG", folder.path().join("log")));
    assert!(text.contains("rank 1 on ") && text.contains("is lost"), "{text}");
    assert_eq!(code, Some(3), "{text}");
}
