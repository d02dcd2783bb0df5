//! The examples at the end of each command's help and in the man page.

pub(crate) const ALL: &str = "\
Examples:
  mpirun -n 2 mpienv show                          each process's place, and where it comes from
  mpirun -n 4 mpienv exec -- python train.py       start a program with the variables set
  mpirun -n 4 bash -c 'eval \"$(mpienv export)\"; echo $RANK of $WORLD_SIZE'
  mpienv launch --nproc-per-node 4 -- ./train      start the ranks of this machine or node
  mpirun -n 4 mpienv check                         test whether all ranks can meet
  mpirun -n 4 mpienv doctor                        find problems on the hosts

Each command has its own help: mpienv export --help";

pub(crate) const EXPORT: &str = "\
Examples:
  eval \"$(mpienv export)\"
  mpienv export --shell fish | source
  eval \"`mpienv export --shell csh`\"
  mpienv export --shell powershell | Out-String | Invoke-Expression
  # In cmd; in a batch file, %%i
  for /f \"delims=\" %i in ('mpienv export --shell cmd') do @%i
  docker run --env-file <(mpienv export --shell docker) IMAGE
  eval \"$(mpienv export --shell apptainer)\"; apptainer exec --cleanenv IMAGE python train.py
  mpienv export --shell github >> \"$GITHUB_ENV\"
  mpienv export --shell json | jq -r .MASTER_ADDR
  # One torchrun on each of two nodes
  srun -N 2 bash -c 'eval \"$(mpienv export --per-node)\"; torchrun --nproc-per-node 8 train.py'

On an error export prints `false` instead of variables: eval changes nothing, and a script under
set -e stops. Without set -e:  eval \"$(mpienv export)\" || exit

--ask-pmix works under Open MPI and `srun --mpi=pmix`. The PMIx server knows the host of rank 0 even
if mpirun runs on another host, and the number of this node. The option needs libpmix
(MPIENV_PMIX_LIB selects another library) and takes 3 to 30 ms. Under Open MPI 4, the rank that
asked and the programs it starts can no longer call MPI_Init.";

pub(crate) const EXEC: &str = "\
Examples:
  mpirun -n 4 mpienv exec -- python train.py --epochs 3
  mpirun -n 4 mpienv exec --master-port 29500 -- ./train
  mpirun -n 4 mpienv exec -- sh -c 'echo $RANK of $WORLD_SIZE on $MASTER_ADDR'
  mpirun -n 2 -H a:1,b:1 mpienv exec --per-node -- torchrun --nproc-per-node 8 train.py
  mpirun -n 2 mpienv exec --for mindspore -- python net.py
  # Writes the file for MLX's ring
  mpirun -n 2 mpienv exec --for mlx --meet 600 -- python train.py
  # Starts when all ranks have arrived
  srun mpienv exec --meet 600 -- python train.py
  # One process on each node
  srun mpienv exec --template -- vllm serve M --nnodes {nnodes} --node-rank {node_rank} \\
    --master-addr {master_addr} {other_nodes}--headless";

pub(crate) const LAUNCH: &str = "\
Examples:
  # 4 ranks on this machine
  mpienv launch --nproc-per-node 4 -- python train.py
  # 8 on each of 2 nodes
  mpirun -n 2 -H a:1,b:1 mpienv launch --nproc-per-node 8 -- python train.py
  # The platform's number, or one for each GPU
  mpienv launch --nproc-per-node auto -- python train.py
  mpienv launch --nproc-per-node 8 --node-rank 1 --nnodes 2 --master-addr node0 -- python train.py
  # Starts again after a failure
  mpienv launch --nproc-per-node 8 --max-restarts 3 -- python train.py
  # Ends a job that hangs, and says where
  mpienv launch --nproc-per-node 8 --stall-timeout 10m -- python train.py
  # Each on cores near its GPU
  mpienv launch --nproc-per-node 8 --bind device -- python train.py
  srun -N 2 --ntasks-per-node 1 mpienv launch --nproc-per-node 8 --log-dir logs -- ./train";

pub(crate) const SHOW: &str = "\
Examples:
  mpirun -n 2 mpienv show
  mpienv show --json | jq .findings";

pub(crate) const CHECK: &str = "\
Examples:
  mpirun -n 4 mpienv check
  srun -N 2 --ntasks-per-node=4 mpienv check --timeout 30
  srun -N 4 --ntasks-per-node=8 mpienv check --mesh --compute    measure the network and the cores

The guide's page findings.md lists each finding, by its name in brackets. If the command is
PREFIX/bin/mpienv and the guide is installed, it is PREFIX/share/doc/mpienv/src/guide/findings.md.";

pub(crate) const DOCTOR: &str = "\
Examples:
  mpirun -n 4 mpienv doctor
  mpienv doctor --json | jq '.findings[].code'

The guide's page findings.md lists each finding, by its name in brackets. If the command is
PREFIX/bin/mpienv and the guide is installed, it is PREFIX/share/doc/mpienv/src/guide/findings.md.";

pub(crate) const SIMULATE: &str = "\
Examples:
  mpienv simulate --launcher open-mpi --nodes 2 --ppn 4 --rank 5
  mpienv simulate --launcher slurm --nodes 2 --ppn 4 -- mpienv export";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  mpienv completions bash > ~/.local/share/bash-completion/completions/mpienv
  mpienv completions zsh > ~/.zfunc/_mpienv        if ~/.zfunc is in fpath before compinit
  mpienv completions fish > ~/.config/fish/completions/mpienv.fish
  mpienv completions powershell >> $PROFILE        in PowerShell";

pub(crate) const MAN: &str = "\
Examples:
  mpienv man > ~/.local/share/man/man1/mpienv.1
  mpienv man | man -l -";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_help_is_wide() {
        let all = [ALL, EXPORT, EXEC, LAUNCH, SHOW, CHECK, DOCTOR, SIMULATE, COMPLETIONS, MAN];
        for line in all.iter().flat_map(|examples| examples.lines()) {
            assert!(line.len() <= 100, "{line}");
        }
    }
}
