//! How errors print: one text in every form, and only what the reader can do.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::errors::changed;
use crate::support::tool::clean;
use mpienv::simulate::Job;
use mpienv::{
    ClusterInfo, Dialect, Host, Launch, Launcher, Munge, NcclIfname, Port, PortRange, Rank, Target,
};
use mpienv_core::seam::{Hostlist, Placeholders};

/// The example that is the README's first program.
fn first_program() -> Command {
    let command = Path::new(env!("CARGO_BIN_EXE_mpienv"));
    let mut program = Command::new(command.with_file_name("examples").join("cluster_info"));
    program.env_clear();
    program
}

#[test]
fn the_first_program_prints_an_error_as_text_and_names_no_option_that_it_does_not_have() {
    let output = first_program()
        .env("OMPI_COMM_WORLD_RANK", "four")
        .env("OMPI_COMM_WORLD_SIZE", "8")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let text = "Error: Open MPI: OMPI_COMM_WORLD_RANK=\"four\": not a whole number from 0 to 4294967295; start the \
                process with mpirun, or unset OMPI_COMM_WORLD_RANK if it is left from another job\n";
    assert_eq!((output.status.code(), said.as_str()), (Some(1), text));
    let nowhere = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    let said = String::from_utf8(first_program().envs(nowhere).output().unwrap().stderr).unwrap();
    assert!(said.ends_with("give rank 0's host to all ranks: MASTER_ADDR=HOST\n"), "{said}");
    // The command has an option for it, and its error names the option.
    let output = clean("mpienv").envs(nowhere).arg("export").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("MASTER_ADDR=HOST; or pass mpienv --master-addr HOST\n"), "{said}");
}

#[test]
fn no_error_of_a_place_prints_its_source_and_returns_it_too() {
    fn error<T, E: Error + 'static>(result: Result<T, E>) -> Box<dyn Error> {
        result.err().expect("it is wrong").into()
    }
    let info = ClusterInfo::from_vars(changed(&[])).unwrap();
    let unplaced = ClusterInfo::from_vars([("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
    let two_lines = NcclIfname::Value("a\nb".to_owned());
    let exports = ClusterInfo::builder().nccl_ifname(two_lines).vars(changed(&[])).read();
    let mut errors = vec![
        error("node/0".parse::<Host>()),
        error(Port::try_from(0)),
        error("9-1".parse::<PortRange>()),
        error("none".parse::<Munge>()),
        error("mpirun".parse::<Launcher>()),
        error("cntk".parse::<Target>()),
        error(Rank::new(4, 4)),
        error(Hostlist::parse("n[1")),
        error(Job::of(Launcher::Alone).per_node(2).build()),
        error(exports.unwrap().exports().unwrap().to_text(Dialect::Docker)),
        error(Placeholders::check_words(&["{own_adr}".into()])),
        error(unplaced.master_addr()),
        error(unplaced.exports_for(Target::Jax)),
        error(info.exports_for(Target::Paddle)),
        error(info.workers(2)),
        error(Launch::new(&info, 2)),
    ];
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let not_unicode = std::ffi::OsStr::from_bytes(b"\xff");
        let environment = mpienv::Environment::from_vars([("A", not_unicode)]);
        errors.push(error(environment.get_str("A")));
    }
    for (name, value) in [
        ("OMPI_COMM_WORLD_RANK", "4"),
        ("OMPI_COMM_WORLD_RANK", "-"),
        ("OMPI_COMM_WORLD_SIZE", "four"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "5"),
        ("MASTER_ADDR", "node/0"),
        ("MASTER_PORT", "0"),
        ("MPIENV_PORT_RANGE", "9-1"),
        ("MPIENV_AUTH", "none"),
        ("MPIENV_LAUNCHER", "mpirun"),
        ("MPIENV_TOKEN", " "),
        ("MPIENV_TOKEN_FILE", "/nowhere"),
    ] {
        let wrong = ClusterInfo::from_vars(changed(&[(name, value)])).unwrap_err();
        errors.extend([wrong.reason().clone().into(), wrong.into()]);
    }
    for error in errors {
        let said = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            assert!(!said.contains(&cause.to_string()), "{said}\nreturns also: {cause}");
            source = cause.source();
        }
    }
}

/// The errors of parsing a value. A failed assertion names their variant.
const OF_VALUES: [&str; 10] = [
    "HostError",
    "HostlistError",
    "InterfaceError",
    "JobError",
    "MungeError",
    "PortError",
    "PortRangeError",
    "RankError",
    "ReadError",
    "SubnetError",
];

#[test]
fn every_other_public_error_prints_its_text_in_debug() {
    let mut unlike = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |_, text| {
        let items = text.split("\npub enum ").chain(text.split("\npub struct ")).skip(1);
        for item in items {
            let name = item.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
            if name.ends_with("Error") && !text.contains(&format!("debug_is_text!({name});")) {
                unlike.push(name.to_owned());
            }
        }
    });
    unlike.sort();
    assert_eq!(unlike, OF_VALUES);
}

#[test]
fn the_library_names_no_option_of_the_command() {
    let options = [
        "--master-addr",
        "--master-port",
        "--nccl-ifname",
        "--ask-pmix",
        "--launcher",
        "--shell",
        "--keep-binding",
        "--keep-master",
        "--log-dir",
        "--per-node",
        "--threads",
    ];
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |path, text| {
        let of_command =
            path.ends_with("cli.rs") || path.components().any(|part| part.as_os_str() == "cli");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let names = |line: &str| {
            options.iter().any(|option| {
                line.match_indices(option).any(|(at, _)| {
                    !line[at + option.len()..]
                        .starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric())
                })
            })
        };
        found.extend(
            code.filter(|line| !of_command && names(line))
                .map(|line| format!("{}: {line}", path.display())),
        );
    });
    assert_eq!(found, [""; 0]);
}

/// Visits each source file below a folder, with its text.
fn visit(folder: &Path, see: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, see);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            see(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
