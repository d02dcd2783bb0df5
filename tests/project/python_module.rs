//! The Python module, as a program sees it that has installed the wheel.

use std::fs;
use std::path::Path;

use super::wheel::{Fresh, sorted, succeeded};
use crate::support::port::free_port;
use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};

const FIVE_LINES: &str = r#"import os
import mpienv_rs as mpienv
info = mpienv.export()
names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
os.write(1, f"{info.rank} {info.local_rank} {info.is_main} {[os.environ[name] for name in names]}\n".encode())
"#;

/// Replaces PyTorch, which is too large to install in every run of the tests. It records the number
/// of threads, and starts none.
const TORCH: &str =
    "number = None\ndef set_num_threads(count):\n    global number\n    number = count\n";

/// Prints what a program would have then: the number of threads, and the cores of each thread that
/// the process had before.
const TORCH_DISTRIBUTED: &str = r#"import os, socket, torch
handlers = {}
def register_rendezvous_handler(scheme, handler):
    handlers[scheme + "://"] = handler
class TCPStore:
    def __init__(self, host, port, size, is_master, *, timeout, multi_tenant, master_listen_fd):
        self.said = None
        if is_master and master_listen_fd is not None:
            listening = socket.socket(fileno=master_listen_fd)
            listening.listen()
            self.said = listening.getsockname()[:2] == (host, port)
    __init__.__doc__ = "(..., master_listen_fd)"
def init_process_group(backend, **options):
    if os.environ.get("SAY_STORE"):
        method = options.get("init_method", "env://")
        meeting = handlers[method](method, timeout=9) if method in handlers else [("env://",)]
        store = next(iter(meeting))[0]
        os.write(1, f"{os.environ['RANK']} {getattr(store, 'said', store)}\n".encode())
        return
    options.pop("init_method", None)
    place = f"{os.environ['RANK']} {os.environ['WORLD_SIZE']}"
    cores = {len(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}
    threads = f"; {torch.number} threads on {cores}" if os.environ.get("SAY_THREADS") else ""
    os.write(1, f"{backend} {options} {place}{threads}\n".encode())
"#;

/// Writes the replacement of PyTorch.
fn write_torch(fresh: &Fresh) {
    fs::create_dir(fresh.folder.path().join("torch")).unwrap();
    fresh.write("torch/__init__.py", TORCH);
    fresh.write("torch/distributed.py", TORCH_DISTRIBUTED);
}

#[test]
fn a_program_finds_its_place_by_the_module() {
    let Some(fresh) = Fresh::new() else { return };
    fresh.write("five_lines.py", FIVE_LINES);
    let mpirun = |script: &str| {
        let mut command = fresh.command("mpirun");
        command.env("MASTER_PORT", "29500").args(["-n", "2", "--oversubscribe", "python", script]);
        succeeded(&mut command)
    };
    let expected =
        ["0 0 True ['0', '2', '127.0.0.1', '29500']", "1 1 False ['1', '2', '127.0.0.1', '29500']"];
    assert_eq!(sorted(&mpirun("five_lines.py")), expected);

    write_torch(&fresh);
    fresh.write(
        "train.py",
        "import mpienv_rs as mpienv\nmpienv.init_process_group('gloo', timeout=9)\n",
    );
    assert_eq!(sorted(&mpirun("train.py")), ["gloo {'timeout': 9} 0 2", "gloo {'timeout': 9} 1 2"]);

    fresh.write(
        "hosts.py",
        "import mpienv_rs\ninfo = mpienv_rs.info()\nprint(info.hosts, info.num_nodes, info.local_rank)\n",
    );
    let simulate = [
        "simulate",
        "--launcher",
        "skypilot",
        "--nodes",
        "2",
        "--rank",
        "1",
        "--",
        "python",
        "hosts.py",
    ];
    assert_eq!(succeeded(fresh.command("mpienv").args(simulate)), "('10.0.0.1', '10.0.0.2') 2 0\n");

    let doctest = "import doctest, mpienv_rs; print(doctest.testmod(mpienv_rs))";
    let output = fresh.python(doctest);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "TestResults(failed=0, attempted=8)\n");
}

/// Prints the place of a process, and the variables of which it may have an older one.
const SAY: &str = r#"import os, mpienv_rs as mpienv
NAMES = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
def say(call):
    info = call()
    places = f"{info.rank} of {info.world_size}, {info.local_rank} of {info.local_world_size}"
    found = [os.environ.get(name) for name in NAMES] if call is mpienv.export else ""
    os.write(1, f"{places} {found}\n".encode())
"#;

#[test]
fn a_forked_worker_finds_its_own_place_whatever_its_parent_was() {
    let Some(fresh) = Fresh::new() else { return };
    // What the worker sets may be what `export` has set in the parent.
    let script = r#"
def work(rank, **more):
    worker = os.fork()
    if worker == 0:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", **more)
        say(mpienv.info)
        say(mpienv.export)
        os._exit(0)
    assert os.waitpid(worker, 0)[1] == 0
for call in mpienv.info, mpienv.export:
    say(call)
    for rank in range(2):
        work(rank)
    for rank in range(2):
        work(rank, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
"#;
    let output = fresh.python(&format!("{SAY}{script}"));
    let said = String::from_utf8(output.stdout).unwrap();
    let workers = "0 of 2, None of None \n\
                   0 of 2, None of None ['0', '2', None, None]\n\
                   1 of 2, None of None \n\
                   1 of 2, None of None ['1', '2', None, None]\n\
                   0 of 2, 0 of 2 \n\
                   0 of 2, 0 of 2 ['0', '2', '0', '2']\n\
                   1 of 2, 1 of 2 \n\
                   1 of 2, 1 of 2 ['1', '2', '1', '2']\n";
    let parent = "0 of 1, 0 of 1 ";
    let expected = format!("{parent}\n{workers}{parent}['0', '1', '0', '1']\n{workers}");
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_process_whose_variables_change_finds_its_new_place_and_asks_once_in_each() {
    let Some(fresh) = Fresh::new() else { return };
    let script = r#"
import subprocess
asked, run = [], subprocess.run
def counted(command, **options):
    asked.append(command[1])
    return run(command, **options)
subprocess.run = counted
def both():
    for _ in range(2):
        say(mpienv.info)
        say(mpienv.export)
    os.write(1, f"{asked}\n".encode())
    asked.clear()
second = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
for place in second, {"RANK": "0", "WORLD_SIZE": "1"}, second:
    os.environ.update(place)
    both()
for name in NAMES:
    os.environ.pop(name, None)
port = mpienv.export().master_port
assert os.environ["MASTER_PORT"] == str(port)
os.environ["ANOTHER"] = "1"
assert mpienv.info().master_port == mpienv.export().master_port == port
"#;
    let output = fresh.python(&format!("{SAY}{script}"));
    let said = String::from_utf8(output.stdout).unwrap();
    let second = "1 of 2, None of None \n1 of 2, None of None ['1', '2', None, None]\n".repeat(2);
    let alone = "0 of 1, 0 of 1 \n0 of 1, 0 of 1 ['0', '1', '0', '1']\n".repeat(2);
    let asked = "['show', 'export']\n";
    let expected = format!("{second}{asked}{alone}{asked}{second}[]\n");
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_rank_in_the_call_that_differs_from_the_place_is_an_error_before_anything_is_set() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    let raised = |options: &str, vars: &[(&str, &str)]| {
        let script = format!(
            "import os, mpienv_rs as mpienv\nbefore = dict(os.environ)\n\
             try:\n    mpienv.init_process_group('gloo', {options})\n\
             except mpienv.Error as e:\n    print(e, before == os.environ)"
        );
        let mut python = fresh.command(fresh.bin().join("python").to_str().unwrap());
        succeeded(python.args(["-c", &script]).envs(vars.iter().copied()))
    };
    let alone = "in the call of init_process_group, and mpienv finds";
    let why = "(no launcher gives this process a place); leave out rank and world_size, and if no \
               launcher has started this process, set RANK, WORLD_SIZE and MASTER_ADDR in \
               os.environ before the call True\n";
    assert_eq!(raised("rank=1, world_size=2", &[]), format!("rank is 1 {alone} 0 {why}"));
    assert_eq!(raised("rank=0, world_size=2", &[]), format!("world_size is 2 {alone} 1 {why}"));
    let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")];
    let said = raised("rank=0", &vars);
    assert!(said.starts_with(&format!("rank is 0 {alone} 1 (RANK); ")), "{said}");
    for same in ["rank=1, world_size=2", "rank=-1, world_size=-1", "rank=None"] {
        assert!(raised(same, &vars).ends_with(" 1 2\n"), "{same}");
    }
}

#[test]
fn a_heartbeat_that_cannot_reach_the_launch_warns_once_and_touches_no_other_file() {
    let Some(fresh) = Fresh::new() else { return };
    let script = r#"
import os, sys, tempfile, mpienv_rs as mpienv
# Another program's file may have the number of the launch's file.
other = tempfile.TemporaryFile()
os.utime(other.fileno(), (1, 1))
for path in "/proc/self/fd/99999", f"/proc/self/fd/{other.fileno()}", os.path.abspath("gone"):
    os.environ["MPIENV_HEARTBEAT_FILE"] = path
    for _ in range(2):
        mpienv.heartbeat()
print(os.fstat(other.fileno()).st_mtime)
"#;
    let said = |quiet: &str| {
        let mut python = fresh.command(fresh.bin().join("python").to_str().unwrap());
        let output = python.args(["-c", script]).env("MPIENV_QUIET", quiet).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1.0\n", "{said}");
        said
    };
    let warnings = said("0");
    let [missing, other, gone] = warnings.lines().collect::<Vec<_>>()[..] else {
        panic!("{warnings}")
    };
    let start = "warning: MPIENV_HEARTBEAT_FILE is '/proc/self/fd/";
    let remedy =
        "; start this program in the PID namespace of `mpienv launch`, or unset the variable";
    for (line, why) in [
        (missing, "99999', which cannot be touched ("),
        (other, "', which is not the file of the launch: "),
    ] {
        let fits = line.starts_with(start) && line.contains(why) && line.ends_with(remedy);
        assert!(fits, "{line}");
    }
    assert!(gone.contains("/gone', which cannot be touched ("), "{gone}");
    assert_eq!(said("1"), "");
}

#[test]
fn the_store_of_pytorch_listens_on_the_masters_address_alone() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    fresh.write(
        "train.py",
        "import sys, mpienv_rs as mpienv\nmpienv.init_process_group('gloo', **eval(sys.argv[1]))\n",
    );
    let said = |options: &str, vars: &[(&str, &str)]| {
        let port = free_port().to_string();
        let mut command = fresh.command("mpirun");
        command.args(["-n", "2", "--oversubscribe", "python", "train.py", options]);
        command.env("SAY_STORE", "1").env("MASTER_PORT", port).envs(vars.iter().copied());
        let text = succeeded(&mut command);
        sorted(&text).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(said("{}", &[]), ["0 True", "1 None"]);
    // It leaves the store to PyTorch if this host does not have the address, and if the user has
    // asked for one.
    assert_eq!(said("{}", &[("MASTER_ADDR", "198.51.100.1")]), ["0 None", "1 None"]);
    assert_eq!(said("{'world_size': 2}", &[]), ["0 env://", "1 env://"]);
}

#[test]
fn pytorch_gets_the_place_in_the_call_where_it_does_not_read_it_from_the_variables() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    let said = |options: &str| {
        let script = format!("import mpienv_rs\nmpienv_rs.init_process_group('gloo', {options})");
        let mut python = fresh.command("python");
        let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")];
        succeeded(python.args(["-c", &script]).envs(vars))
    };
    let passed = "gloo {'rank': 1, 'world_size': 2} 1 2\n";
    for method in ["tcp://localhost:1025", "tcp://localhost:1025?use_libuv=0", "file:///shared"] {
        assert_eq!(said(&format!("init_method='{method}'")), passed, "{method}");
    }
    assert_eq!(said("rank=-1, world_size=2, init_method='file:///shared'"), passed);
    assert!(said("store=9").contains("'store': 9, 'rank': 1, 'world_size': 2}"));
    for method in ["env://", "tcp://localhost:1025?rank=1&world_size=2"] {
        assert_eq!(said(&format!("init_method='{method}'")), "gloo {} 1 2\n", "{method}");
    }
}

#[test]
fn the_module_gives_pytorch_this_ranks_share_of_the_cores() {
    let Some(fresh) = Fresh::new() else { return };
    if !is_there("taskset") {
        return;
    }
    write_torch(&fresh);
    // A thread that a library has started before keeps its mask unless somebody changes it.
    let script = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n\
                  import mpienv_rs as mpienv\nmpienv.init_process_group('gloo')\n";
    fresh.write("train.py", script);
    let said = |words: &[&str], vars: &[(&str, &str)]| {
        let mut command = fresh.command("mpirun");
        command.args(words).args(["python", "train.py"]).env("SAY_THREADS", "1");
        let text = succeeded(command.envs(vars.iter().copied()));
        let mut said: Vec<_> =
            text.lines().map(|line| line.rsplit_once("; ").unwrap().1.to_owned()).collect();
        said.sort_unstable();
        said
    };
    let all = succeeded(clean("taskset").args(["-c", "0-1023", "nproc"]));
    let all = all.trim();
    for ranks in ["1", "2"] {
        let start = ["--oversubscribe", "-n", ranks];
        // What the command gives a program is what the module gives PyTorch.
        let mut exec = fresh.command("mpirun");
        let exec = exec.args(start).args(["mpienv", "exec", "--", "printenv", "OMP_NUM_THREADS"]);
        let expected: Vec<_> =
            succeeded(exec).lines().map(|share| format!("{share} threads on {{{all}}}")).collect();
        assert_eq!(expected.len().to_string(), ranks);
        assert_eq!(said(&start, &[]), expected);
        for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            let own = said(&start, &[(name, "1")]);
            assert_eq!(own, vec![format!("None threads on {{{all}}}"); expected.len()], "{name}");
        }
        // Inside exec, it finds what exec has set.
        assert_eq!(said(&[&start[..], &["mpienv", "exec", "--"]].concat(), &[]), expected);
    }
    assert_eq!(said(&["-n", "1"], &[("MPIENV_THREADS", "3")]), [format!("3 threads on {{{all}}}")]);
    for kept in [
        said(&["-n", "1"], &[("MPIENV_THREADS", "keep")]),
        said(&["-n", "1", "--bind-to", "core"], &[]),
    ] {
        assert!(kept[0].ends_with(" threads on {1}") || all == "1", "{kept:?}");
    }
    let kept = said(&["-n", "1", "mpienv", "exec", "--keep-binding", "--"], &[]);
    assert!(kept[0] == "1 threads on {1}", "{kept:?}");
    // Alone, nothing is shared.
    let mut alone = fresh.command("python");
    assert!(succeeded(alone.arg("train.py").env("SAY_THREADS", "1")).contains("; None threads on"));
}

#[test]
fn the_wheel_carries_the_library_of_the_backend_for_pytorch() {
    let Some(fresh) = Fresh::new() else { return };
    // PyTorch is too large to install in every run of the tests: tests/real_programs/run torch.
    let script = "import ctypes\n\
                  from importlib.metadata import entry_points\n\
                  from mpienv_rs.torch._library import Group, kind_of, library\n\
                  library()\n\
                  group = Group(0, 1, None, '127.0.0.1', 1, '', 60)\n\
                  group.barrier()\n\
                  number = ctypes.c_float(2)\n\
                  group.reduce((ctypes.addressof(number), 4), kind_of('f32'), b'sum', -1)\n\
                  print(kind_of('f32'), number.value)\n\
                  found = entry_points()\n\
                  found = found.get('torch.distributed.backends', []) if isinstance(found, dict) \
                  else found.select(group='torch.distributed.backends')\n\
                  print([(point.name, point.value) for point in found])";
    let output = fresh.python(script);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "0 2.0\n[('mpienv', 'mpienv_rs.torch:register')]\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_module_without_the_library_names_the_command_that_builds_it() {
    let folder = tempfile::tempdir().unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/python/mpienv_rs");
    let place = folder.path().join("mpienv_rs");
    succeeded(clean("cp").arg("-r").args([&module, &place]));
    // Another test may have built it.
    let _ = fs::remove_file(place.join("libmpienv_torch.so"));
    let mut python = clean("python3");
    python.env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    python.args(["-c", "from mpienv_rs.torch._library import library; library()"]);
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let remedy = "run `pip install ./src/python` in the project's folder";
    assert!(!output.status.success() && said.contains(remedy), "{said}");
}

#[test]
fn ctrl_c_ends_a_call_of_the_backend_that_waits_and_the_other_rank_learns_it() {
    let Some(fresh) = Fresh::new() else { return };
    // Rank 1 is in the same process, and makes its calls only when rank 0 has given up: the first
    // meets that of rank 0.
    let script = "import os, signal, socket, threading\n\
                  from mpienv_rs.torch._library import Failure, Group\n\
                  signal.signal(signal.SIGINT, signal.default_int_handler)\n\
                  listener, ranks = socket.create_server(('127.0.0.1', 0)), {}\n\
                  port, timeout = listener.getsockname()[1], 1200\n\
                  def connect(rank, listener):\n    \
                      ranks[rank] = Group(rank, 2, listener, '127.0.0.1', port, 'secret', timeout)\n\
                  other = threading.Thread(target=connect, args=(1, None))\n\
                  other.start()\n\
                  connect(0, listener.detach())\n\
                  other.join()\n\
                  interrupt = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))\n\
                  interrupt.start()\n\
                  for rank in (0, 1, 1, 0):\n    \
                      try:\n        \
                          ranks[rank].barrier()\n    \
                      except (KeyboardInterrupt, Failure) as error:\n        \
                          print(rank, type(error).__name__, 'canceled' in str(error), 'KeyboardInterrupt' in str(error))";
    let output = fresh.python(script);
    let said = String::from_utf8_lossy(&output.stdout);
    // What rank 0 is told of its next call is not that another thread canceled it.
    let expected = "0 KeyboardInterrupt False False\n1 Failure True False\n0 Failure False True\n";
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_module_prints_the_commands_warnings_once() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    let said = |call: &str, vars: &[(&str, &str)]| {
        let mut python = fresh.command(fresh.bin().join("python").to_str().unwrap());
        let script = format!("import mpienv_rs as mpienv\nmpienv.{call}\nmpienv.{call}");
        let output = python.args(["-c", &script]).envs(vars.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let guessable = [("MPIENV_TOKEN", "guessable")];
    let mut exec = fresh.command("mpienv");
    let expected = exec.args(["exec", "--", "true"]).envs(guessable).output().unwrap().stderr;
    let expected = String::from_utf8(expected).unwrap();
    assert!(expected.starts_with("warning [secret-short]: "), "{expected}");
    for call in ["info()", "export()", "init_process_group('gloo')"] {
        assert_eq!(said(call, &guessable), expected, "{call}");
        assert_eq!(said(call, &[guessable[0], ("MPIENV_QUIET", "1")]), "", "{call}");
        assert_eq!(said(call, &[]), "", "{call}");
    }
    for call in ["info(quiet=True)", "export(quiet=True)", "init_process_group('gloo', quiet=True)"]
    {
        assert_eq!(said(call, &guessable), "", "{call}");
    }
    // An error is printed whatever the variable says, and is among the findings in any case.
    let stale = [("MASTER_ADDR", "192.0.2.7"), ("MPIENV_QUIET", "1")];
    let loud = said("info()", &stale);
    assert_eq!(loud.matches("error [master-not-here]: ").count(), 1, "{loud}");
    let found = "info(quiet=True).findings[0].severity == 'error' or 1/0";
    assert_eq!(said(found, &stale[..1]), "");
    let second = [
        "RANK=1",
        "WORLD_SIZE=2",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "TORCHELASTIC_USE_AGENT_STORE=True",
    ];
    let second: Vec<_> = second.iter().map(|pair| pair.split_once('=').unwrap()).collect();
    assert_eq!(said("info()", &second), "");
}

/// Makes a call of the module, and prints its error.
const TRIED: &str = "import sys, mpienv_rs as mpienv\n\
                     try:\n    eval('mpienv.' + sys.argv[1])\n\
                     except mpienv.Error as error:\n    print(error)\n";

#[test]
fn init_process_group_refuses_to_be_the_only_rank_in_a_process_that_is_probably_one_of_several() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    fresh.write("tried.py", TRIED);
    let said = |call: &str, more: &[(&str, &str)]| {
        let mut python = fresh.command("python");
        python.args(["tried.py", call]).envs([("SLURM_JOB_ID", "5"), ("SLURM_NTASKS", "4")]);
        succeeded(python.envs(more.iter().copied()))
    };
    let expected = "SLURM_JOB_ID=\"5\" and SLURM_NTASKS=\"4\" are set, but srun did not start this process, so this process \
                    would be rank 0 of 1; start the program with `srun`, which starts every task, or set \
                    MPIENV_LAUNCHER=alone for a process by itself\n";
    for options in ["", ", overwrite=True", ", quiet=True"] {
        let call = format!("init_process_group('gloo'{options})");
        assert_eq!(said(&call, &[]), expected, "{options}");
        assert_eq!(said(&call, &[("MPIENV_LAUNCHER", "alone")]), "gloo {} 0 1\n", "{options}");
    }
    for call in ["info()", "export()"] {
        assert_eq!(said(call, &[]), "", "{call}");
    }
}

#[test]
fn a_torchrun_that_ignores_the_other_nodes_gets_no_advice_to_train_on_each_alone() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    fresh.write("tried.py", TRIED);
    for (workers, call) in [(1, "export()"), (2, "export()"), (1, "init_process_group('gloo')")] {
        let worker = format!(
            "TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE={workers} LOCAL_RANK=0 LOCAL_WORLD_SIZE={workers} GROUP_RANK=0 \
             GROUP_WORLD_SIZE=1 MASTER_PORT=1025"
        );
        let mut exec = fresh.command("mpienv");
        exec.envs([("NODE_RANK", "1"), ("NNODES", "2"), ("MASTER_ADDR", "10.1.2.3")]);
        exec.args(["exec", "--per-node", "--", "env"]).args(worker.split(' '));
        let said = succeeded(exec.args(["python", "tried.py", call]));
        assert!(
            said.contains(&format!("torchrun says rank 0 of {workers} "))
                && said.contains("`torchrun --nnodes N --node-rank R`")
                && !said.contains("overwrite"),
            "{said}"
        );
    }
}

/// Starts two processes of multiprocessing. The words say how, and what sets their ranks.
const SPAWN: &str = r#"import multiprocessing, os, sys
import mpienv_rs as mpienv
method, setter, *calls = sys.argv[1:]
def be(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
def work(rank):
    if setter == "worker":
        be(rank)
    mpienv.init_process_group("gloo")
if __name__ == "__main__":
    for call in calls:
        getattr(mpienv, call)()
    context = multiprocessing.get_context(method)
    ranks = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for number, rank in enumerate(ranks):
        if setter == "parent":
            be(number)
        rank.start()
    for rank in ranks:
        rank.join()
"#;

#[test]
fn processes_of_multiprocessing_that_have_their_parents_place_are_reported() {
    let Some(fresh) = Fresh::new() else { return };
    write_torch(&fresh);
    fresh.write("spawn.py", SPAWN);
    let warned = |start: &str, words: &str, vars: &[(&str, &str)]| {
        let mut all = start.split(' ').chain(["python", "spawn.py"]).chain(words.split(' '));
        let mut command = fresh.command(all.next().unwrap());
        let output = command.args(all).envs(vars.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let places = String::from_utf8(output.stdout).unwrap().matches("gloo {").count();
        let said = String::from_utf8(output.stderr).unwrap();
        (said.matches("warning: multiprocessing has started this process").count(), places)
    };
    for method in ["spawn", "forkserver", "fork"] {
        for calls in ["", " export"] {
            let by = |setter: &str| format!("{method} {setter}{calls}");
            assert_eq!(warned("env", &by("-"), &[]), (2, 2), "{method}{calls}");
            assert_eq!(warned("env", &by("worker"), &[]), (0, 2), "{method}{calls}");
        }
    }
    for calls in ["", " export"] {
        // The place is the launcher's there, whatever the parent has exported.
        let words = format!("spawn -{calls}");
        assert_eq!(warned("mpirun -n 2 --oversubscribe", &words, &[]), (4, 4), "{calls}");
    }
    assert_eq!(warned("env", "spawn -", &[("RANK", "0"), ("WORLD_SIZE", "1")]), (2, 2));
    assert_eq!(warned("env", "spawn parent", &[]), (0, 2));
    assert_eq!(warned("env", "spawn -", &[("MPIENV_LAUNCHER", "alone")]), (0, 2));
}

#[test]
fn what_is_wrong_is_an_error_with_the_commands_own_text() {
    let Some(fresh) = Fresh::new() else { return };
    let raised = |script: &str| {
        let script = format!(
            "import os, mpienv_rs as mpienv\ntry:\n    {script}\nexcept mpienv.Error as e:\n    print(e)"
        );
        let output = fresh.python(&script);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // Where SIGCHLD is ignored, no process learns how the command ended.
    let ignored = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); ";
    for before in ["", ignored] {
        let text =
            raised(&format!("{before}os.environ['OMPI_COMM_WORLD_RANK'] = '0'; mpienv.info()"));
        assert!(
            text.starts_with(
                "Open MPI: OMPI_COMM_WORLD_SIZE is not set, although OMPI_COMM_WORLD_RANK"
            ),
            "{text}"
        );
    }
    // It passes the command no options.
    let text = raised("os.environ['RANK'] = '0'; mpienv.info()");
    assert!(text.contains("or set RANK=R WORLD_SIZE=N LOCAL_RANK=0"), "{text}");
    assert!(text.contains("pass mpienv --node-rank"), "{text}");
    let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(raised("print(mpienv.__version__)"), version);
    let pair = "os.environ.update(PMI_RANK='1', PMI_SIZE='2')";
    let text = raised(&format!(
        "{pair}; print(mpienv.info().master_addr, mpienv.info().findings[0].code); mpienv.export()"
    ));
    assert!(
        text.starts_with("None master-unknown\n")
            && text.contains("no variable names rank 0's host"),
        "{text}"
    );
    let kept = "os.environ.update(NCCL_SOCKET_IFNAME='ib0', TORCHELASTIC_USE_AGENT_STORE='True'); mpienv.export(); \
                print(os.environ['NCCL_SOCKET_IFNAME'], 'TORCHELASTIC_USE_AGENT_STORE' in os.environ)";
    assert_eq!(raised(kept), "ib0 False\n");
    // The name that a traceback shows is the one in the documentation.
    assert_eq!(raised("print(mpienv.Error)"), "<class 'mpienv_rs.Error'>\n");
}

#[test]
fn stale_variables_are_one_error_that_names_all_of_them_and_the_call() {
    let Some(fresh) = Fresh::new() else { return };
    let said = |rank: u8, call: &str| {
        let script = format!(
            "import os, mpienv_rs as mpienv\nos.environ.update(PMI_RANK='{rank}', PMI_SIZE='2', RANK='0', \
             WORLD_SIZE='1', MASTER_ADDR='a', MPIENV_LAUNCHER='hydra')\ntry:\n    mpienv.{call}\nexcept mpienv.Error as e:\n    print(e)\n\
             print(os.environ['RANK'], os.environ['WORLD_SIZE'])"
        );
        succeeded(fresh.command("python").args(["-c", &script]))
    };
    let size = "WORLD_SIZE is '1', and mpienv finds '2'; unset RANK and WORLD_SIZE, or call ";
    for call in ["export", "init_process_group"] {
        let (end, call) = (format!("{size}{call}(overwrite=True)\n0 1\n"), format!("{call}()"));
        assert_eq!(said(0, &call), end);
        assert_eq!(said(1, &call), format!("RANK is '0', and mpienv finds '1'; {end}"));
    }
    assert_eq!(said(1, "export(overwrite=True)"), "1 2\n");
}

/// The command of mpienv on PyPI, as pip writes it.
const TYPED: &str = r#"from typing import Mapping, Optional, Tuple

import mpienv_rs as mpienv

info: mpienv.Info = mpienv.info()
numbers: Tuple[int, int, int] = (info.rank, info.world_size, info.master_port)
maybe: Tuple[Optional[int], ...] = (info.local_rank, info.local_world_size, info.node_rank, info.num_nodes)
more: Tuple[Optional[int], ...] = (info.device_index, info.restart_count)
hosts: Tuple[Optional[str], Optional[Tuple[str, ...]]] = (info.master_addr, info.hosts)
launcher: str = info.launcher
is_main: bool = info.is_main
sources: Mapping[str, str] = info.sources
findings: Tuple[mpienv.Finding, ...] = info.findings
for finding in findings:
    texts: Tuple[str, ...] = (finding.severity, finding.code, finding.what, finding.why, finding.remedy)
same: mpienv.Info = mpienv.export(overwrite=False, quiet=True)
path: str = mpienv.find_command()
version: str = mpienv.__version__
mpienv.heartbeat()
try:
    mpienv.init_process_group("gloo", overwrite=True, world_size=2)
except mpienv.Error as error:
    print(error)
"#;

#[test]
fn mypy_accepts_a_program_that_uses_every_name_of_the_module() {
    let (Some(fresh), Some(mypy)) = (Fresh::new(), from_python("mypy", "mypy")) else { return };
    fresh.write("typed.py", TYPED);
    let check = |file: &str| {
        let mut command = fresh.command(mypy.to_str().unwrap());
        command
            .args(["--strict", "--python-executable"])
            .arg(fresh.bin().join("python"))
            .arg(file)
            .output()
            .unwrap()
    };
    let output = check("typed.py");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    fresh.write("wrong.py", "import mpienv_rs\nrank: str = mpienv_rs.info().rank\n");
    assert!(!check("wrong.py").status.success(), "the types are the module's own");
    let names = fresh.python("import mpienv_rs; print(*mpienv_rs.__all__)");
    for name in String::from_utf8(names.stdout).unwrap().split_whitespace() {
        assert!(TYPED.contains(&format!("mpienv.{name}")), "{name} is not in the program");
    }
}
