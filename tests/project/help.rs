//! The examples in the command's help, run as written where a stand-in can take the place of what
//! this machine does not have.

use std::fs;
use std::path::Path;

use crate::support::script::script;
use crate::support::tool::clean;

const COMMANDS: [&str; 10] =
    ["", "export", "exec", "launch", "show", "check", "doctor", "simulate", "completions", "man"];

/// How examples begin, and not what follows in a line that was broken.
const FIRST: [&str; 6] = ["mpienv", "mpirun", "srun", "eval", "for", "docker"];

/// Examples that do not run here, by a part of each: those for other shells, which the tests of
/// dialects run, and those that need a GPU.
const ELSEWHERE: [&str; 6] = [
    "--shell fish | source",
    "`mpienv export --shell csh`",
    "--shell powershell | Out-String",
    "--shell cmd",
    ">> $PROFILE",
    "--bind device",
];

/// Examples that may exit with 3: they have something to say of this machine.
const FINDINGS: [&str; 2] = ["mpienv doctor", "--mesh --compute"];

/// The launchers start simulated ranks. The programs do nothing.
const STAND_INS: [(&str, &str); 8] = [
    (
        "mpirun",
        r#"#!/bin/sh
n=$2; shift 2
[ "$1" = -H ] && { shift 2; exec mpienv simulate --launcher open-mpi --nodes "$n" -- "$@"; }
exec mpienv simulate --launcher open-mpi --ppn "$n" -- "$@"
"#,
    ),
    (
        "srun",
        r#"#!/bin/sh
nodes=2 ppn=1
while :; do
    case $1 in
    -N) nodes=$2; shift 2 ;;
    --ntasks-per-node) ppn=$2; shift 2 ;;
    --ntasks-per-node=*) ppn=${1#*=}; shift ;;
    *) exec mpienv simulate --launcher slurm --nodes "$nodes" --ppn "$ppn" -- "$@" ;;
    esac
done
"#,
    ),
    ("python", "#!/bin/sh\ntest -n \"$RANK$1\"\n"),
    ("torchrun", "#!/bin/sh\ntest -n \"$MASTER_ADDR\"\n"),
    ("vllm", "#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\n"),
    ("docker", "#!/bin/sh\ngrep -q ^RANK= \"$3\"\n"),
    ("apptainer", "#!/bin/sh\ntest -n \"$APPTAINERENV_RANK\"\n"),
    ("jq", "#!/bin/sh\ncat >/dev/null\n"),
];

/// The examples at the end of a help, without what explains them. Long lines are broken.
fn examples(help: &str) -> Vec<String> {
    let (_, rest) = help.split_once("\nExamples:\n").unwrap_or_default();
    let mut examples: Vec<String> = Vec::new();
    for line in rest.lines().take_while(|line| !line.is_empty()).map(str::trim) {
        let begins = FIRST.iter().any(|word| line.split(' ').next() == Some(word));
        match examples.last_mut().filter(|_| !begins) {
            Some(last) => *last += &format!(" {line}"),
            None => examples.push(line.to_owned()),
        }
    }
    examples.iter().map(|line| line.split("   ").next().unwrap().to_owned()).collect()
}

#[test]
fn every_example_in_the_commands_help_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for below in
        [".local/share/man/man1", ".local/share/bash-completion/completions", ".zfunc", "bin"]
    {
        fs::create_dir_all(at(below)).unwrap();
    }
    fs::create_dir_all(at(".config/fish/completions")).unwrap();
    for (name, text) in STAND_INS {
        script(&at("bin").join(name), text);
    }
    script(&at("train"), "#!/bin/sh\ntest -n \"$RANK\"\n");
    let (mut ran, mut elsewhere) = (0, 0);
    for command in COMMANDS {
        let help = clean("mpienv").args(command.split_whitespace()).arg("--help").output().unwrap();
        let examples = examples(&String::from_utf8(help.stdout).unwrap());
        assert!(!examples.is_empty(), "{command}");
        for example in examples {
            if ELSEWHERE.iter().any(|part| example.contains(part)) {
                elsewhere += 1;
                continue;
            }
            run(&example, folder.path());
            ran += 1;
        }
    }
    assert!(ran > 30 && elsewhere == ELSEWHERE.len(), "{ran} ran, {elsewhere} did not");
}

fn run(example: &str, folder: &Path) {
    let mut bash = clean("bash");
    bash.args(["-c", "PATH=$PWD/bin:$PATH; set -o pipefail; eval \"$EXAMPLE\""]);
    bash.env("EXAMPLE", example).env("HOME", folder).env("MANPAGER", "cat");
    bash.env("GITHUB_ENV", folder.join("github.env")).current_dir(folder);
    let output = bash.output().unwrap();
    let code = output.status.code();
    let is_fine =
        code == Some(0) || code == Some(3) && FINDINGS.iter().any(|part| example.contains(part));
    assert!(is_fine, "{example}: {output:?}");
}
