//! The examples at the end of each command's help and in the man page.

pub(crate) const ALL: &str = "\
Examples:
  mpirun -n 2 mpienv show                          where each process is, and how it is known
  mpirun -n 4 mpienv exec -- python train.py       start a program with the variables set
  mpirun -n 4 bash -c 'eval \"$(mpienv export)\"; echo $RANK of $WORLD_SIZE'

Each command has a help of its own: mpienv export --help";

pub(crate) const EXPORT: &str = "\
Examples:
  eval \"$(mpienv export)\"                                        sh, bash, zsh
  mpienv export --shell fish | source                            fish
  eval \"`mpienv export --shell csh`\"                             csh, tcsh
  mpienv export --shell powershell | Out-String | Invoke-Expression
  for /f \"delims=\" %i in ('mpienv export --shell cmd') do @%i    cmd; %%i in a batch file
  docker run --env-file <(mpienv export --shell docker) IMAGE
  mpienv export --shell github >> \"$GITHUB_ENV\"
  mpienv export --shell json | jq -r .MASTER_ADDR
  mpirun -n 2 -H a:1,b:1 bash -c 'eval \"$(mpienv export --per-node)\"; torchrun --nproc-per-node 8 train.py'

On an error no variable is printed, but `false`: eval then changes nothing, and a script under set -e stops.
Without set -e:  eval \"$(mpienv export)\" || exit";

pub(crate) const EXEC: &str = "\
Examples:
  mpirun -n 4 mpienv exec -- python train.py --epochs 3
  mpirun -n 4 mpienv exec --master-port 29500 -- ./train
  mpirun -n 4 mpienv exec -- sh -c 'echo $RANK of $WORLD_SIZE on $MASTER_ADDR'
  mpirun -n 2 -H a:1,b:1 mpienv exec --per-node -- torchrun --nproc-per-node 8 train.py
  mpirun -n 2 mpienv exec --for mindspore -- python net.py";

pub(crate) const LAUNCH: &str = "\
Examples:
  mpienv launch --nproc-per-node 4 -- python train.py                          4 ranks on this machine
  mpirun -n 2 -H a:1,b:1 mpienv launch --nproc-per-node 8 -- python train.py   8 on each of 2 nodes
  srun -N 2 --ntasks-per-node 1 mpienv launch --nproc-per-node 8 --log-dir logs -- ./train";

pub(crate) const SHOW: &str = "\
Examples:
  mpirun -n 2 mpienv show
  mpienv show --json | jq .findings";

pub(crate) const CHECK: &str = "\
Examples:
  mpirun -n 4 mpienv check
  srun -N 2 --ntasks-per-node=4 mpienv check --timeout 30";

pub(crate) const DOCTOR: &str = "\
Examples:
  mpirun -n 4 mpienv doctor
  mpienv doctor --json | jq '.findings[].code'";

pub(crate) const SIMULATE: &str = "\
Examples:
  mpienv simulate --launcher open-mpi --nodes 2 --ppn 4 --rank 5
  mpienv simulate --launcher slurm --nodes 2 --ppn 4 -- mpienv export";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  mpienv completions bash > ~/.local/share/bash-completion/completions/mpienv
  mpienv completions zsh > ~/.zfunc/_mpienv        where ~/.zfunc is in fpath before compinit
  mpienv completions fish > ~/.config/fish/completions/mpienv.fish
  mpienv completions powershell >> $PROFILE        in PowerShell";

pub(crate) const MAN: &str = "\
Examples:
  mpienv man > ~/.local/share/man/man1/mpienv.1
  mpienv man | man -l -";
