# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_mpienv_global_optspecs
    string join \n json h/help V/version
end

function __fish_mpienv_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_mpienv_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_mpienv_using_subcommand
    set -l cmd (__fish_mpienv_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c mpienv -n "__fish_mpienv_needs_command" -l json -d 'With --version: print the version, commit, target and features as JSON'
complete -c mpienv -n "__fish_mpienv_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_needs_command" -s V -l version -d 'Print version'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "export" -d 'Print assignments for eval: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "exec" -d 'Run a command with the variables set (replaces this process)'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "launch" -d 'Start this node\'s workers, and stop them all when one fails'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "show" -d 'Show each value and where it comes from'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "doctor" -d 'Show each value, and find problems on this host'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "check" -d 'Test whether all ranks can meet at the master, and name the missing ones'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "simulate" -d 'Print the environments that a launcher would create, or run a command in each'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "completions" -d 'Print a completion script for a shell'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "man" -d 'Print the manual page'
complete -c mpienv -n "__fish_mpienv_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l shell -d 'The shell or file format to print for' -r -f -a "sh\t'Any POSIX shell: sh, dash, ksh'
bash\t'Same as sh'
zsh\t'Same as sh'
fish\t'The fish shell'
csh\t'csh and tcsh'
powershell\t'PowerShell on any system'
cmd\t'Windows\' cmd.exe'
dotenv\t'A .env file, as Docker Compose, python-dotenv and Node read it'
docker\t'A file for docker run --env-file or podman run --env-file'
apptainer\t'Variables of sh for a container of Apptainer or Singularity, also with --cleanenv'
github\t'Lines to append to the file that GITHUB_ENV names in a GitHub Actions step'
json\t'One JSON object for programs; null means unset'"
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l for -d 'Also set the variables that this program reads' -r -f -a "torch\t''
jax\t''
mindspore\t''
lightning\t''
deepspeed\t''
tensorflow\t''
paddle\t''
oneccl\t''
mlx\t''
mistralrs\t''
lamellar\t''
torchcomms\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l threads -d 'Set OMP_NUM_THREADS and RAYON_NUM_THREADS: a number, `share` or `keep` [env: MPIENV_THREADS]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l no-ask -d 'Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -l per-node -d 'Print the node\'s variables instead, for a torchrun on each node'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -s v -l verbose -d 'Print all findings on stderr, including notes'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -s q -l quiet -d 'Print no warnings on stderr, only errors [env: MPIENV_QUIET=1]'
complete -c mpienv -n "__fish_mpienv_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l for -d 'Also set the variables that this program reads' -r -f -a "torch\t''
jax\t''
mindspore\t''
lightning\t''
deepspeed\t''
tensorflow\t''
paddle\t''
oneccl\t''
mlx\t''
mistralrs\t''
lamellar\t''
torchcomms\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l bind -d 'Bind the command to cores; memory follows by the first write to it' -r -f -a "none\t'No binding: all cores that the cgroup allows'
core\t'A rank\'s share of the node\'s cores: whole cores, next to each other, on one NUMA node if they fit'
numa\t'All cores of a NUMA node; the ranks are spread evenly over the NUMA nodes'
device\t'A rank\'s share of the cores of its GPU\'s NUMA node'"
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l threads -d 'Set OMP_NUM_THREADS and RAYON_NUM_THREADS: a number, `share` or `keep` [env: MPIENV_THREADS]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l wait-for-master -d 'Start once the master\'s name resolves, or fail after a time such as 90s or 10m' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l meet -d 'Start once all ranks have arrived, or fail after a time such as 90s or 10m and name the missing ones' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l no-ask -d 'Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l per-node -d 'Set the node\'s variables, and unset RANK, WORLD_SIZE and LOCAL_RANK: for torchrun only'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l keep-binding -d 'Keep Open MPI\'s default binding to cores; without this option the command may use all cores of its mpirun'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l template -d 'Replace placeholders such as {node_rank} in the arguments of the command'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l dry-run -d 'Print the command, one argument per line and quoted for a shell, and start nothing'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -l allow-launcher -d 'Start the command even if it is itself a launcher, such as mpirun, srun or torchrun'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -s q -l quiet -d 'Print no warnings on stderr, only errors [env: MPIENV_QUIET=1]'
complete -c mpienv -n "__fish_mpienv_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l for -d 'Also set the variables that this program reads' -r -f -a "torch\t''
jax\t''
mindspore\t''
lightning\t''
deepspeed\t''
tensorflow\t''
paddle\t''
oneccl\t''
mlx\t''
mistralrs\t''
lamellar\t''
torchcomms\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l nproc-per-node -d 'How many workers to start on this node: a number, `auto`, `gpu` or `cpu`; the same on all nodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l log-dir -d 'Write the workers\' output to DIR/rank.K/stdout and DIR/rank.K/stderr instead' -r -F
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l grace -d 'How long workers may take to exit: by default 5 s after one has failed, 30 s after SIGINT or SIGTERM' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l max-restarts -d 'Start all workers again after one has failed, at most N times' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l stall-timeout -d 'End a job that hangs: one none of whose workers has written anything for a time such as 10m or 2h' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l node-timeout -d 'With --max-restarts or --stall-timeout on several nodes: how long a node may be silent before the job ends; the same on every node' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l bind -d 'Bind each worker to cores; memory follows by the first write to it' -r -f -a "none\t'No binding: all cores that the cgroup allows'
core\t'A rank\'s share of the node\'s cores: whole cores, next to each other, on one NUMA node if they fit'
numa\t'All cores of a NUMA node; the ranks are spread evenly over the NUMA nodes'
device\t'A rank\'s share of the cores of its GPU\'s NUMA node'"
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l threads -d 'Set OMP_NUM_THREADS and RAYON_NUM_THREADS: a number, `share` or `keep` [env: MPIENV_THREADS]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l meet -d 'Start once all ranks have arrived, or fail after a time such as 90s or 10m and name the missing ones' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l no-ask -d 'Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l keep-binding -d 'Keep the binding of mpienv to cores; without this option the workers may use all cores of the job'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l template -d 'Replace placeholders such as {node_rank} in the arguments of the command'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -l allow-launcher -d 'Start the command even if it is itself a launcher, such as mpirun, srun or torchrun'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -s q -l quiet -d 'Print no warnings on stderr, only errors [env: MPIENV_QUIET=1]'
complete -c mpienv -n "__fish_mpienv_using_subcommand launch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l own-addr -d 'Show this host\'s own address and interface too, by the route to the master'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l warn -d 'Print warnings on stderr too, once on each node, as `exec` does'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -l json -d 'Print one JSON object'
complete -c mpienv -n "__fish_mpienv_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l timeout -d 'How long to wait for the other ranks, in seconds or as 90s or 10m; 0 inspects this rank only' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l no-ask -d 'Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]'
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -l json -d 'Print one JSON object'
complete -c mpienv -n "__fish_mpienv_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l launcher -d 'Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l master-addr -d 'The host of rank 0 [env: MPIENV_MASTER_ADDR]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l master-port -d 'The port at the host of rank 0, or `auto` to derive one from the job [env: MPIENV_MASTER_PORT]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l port-range -d 'Derive ports from this range, 20000-29999 by default; the same on all ranks [env: MPIENV_PORT_RANGE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l nccl-ifname -d 'NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l interface -d 'Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l node-rank -d 'The number of this node, from 0, if the platform does not set it; needs --nnodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l nnodes -d 'The number of nodes, each with one process; above 1, needs --node-rank and a master such as --master-addr' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l timeout -d 'How long to wait for all ranks, in seconds or as 90s or 10m' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l bind -d 'The address of its host that rank 0 listens on; 0.0.0.0 or :: for every address' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l mesh-bytes -d 'The most bytes that two hosts send each other in each direction in one measurement' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l gpu-bytes -d 'The most bytes that NCCL sums at once' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l bad-hosts -d 'Write the hosts to blame to FILE, separated by commas' -r -F
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l one-per-node -d 'This is the only process on its node, and its rank is the number of the node'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l ask-pmix -d 'Ask the launcher\'s PMIx server for the host of rank 0; `mpienv export --help` has its limits'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l no-ask -d 'Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l mesh -d 'Also measure the network between every two hosts, and name the outliers'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l compute -d 'Also measure how fast each rank computes and copies memory, all at once'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l gpu -d 'Also test each rank\'s GPU, by itself and with the others through NCCL'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -l json -d 'Print the map and all findings, or why the ranks did not meet, as one JSON object'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -s q -l quiet -d 'Print no warnings on stderr, only errors [env: MPIENV_QUIET=1]'
complete -c mpienv -n "__fish_mpienv_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l launcher -d 'The launcher to simulate' -r -f -a "torchrun\t''
horovod\t''
msrun\t''
ascend\t''
paddle\t''
mlx\t''
open-mpi\t''
mvapich\t''
hydra\t''
pals\t''
jsm\t''
flux\t''
submitit-local\t''
slurm\t''
user\t''
jax\t''
torchcomms\t''
lamellar\t''
htcondor\t''
google-batch\t''
sagemaker\t''
leader-worker-set\t''
skypilot\t''
dstack\t''
lepton\t''
mlp\t''
runpod\t''
vertex\t''
volcano\t''
kubernetes\t''
aws-batch\t''
mistralrs\t''
tf-config\t''
alone\t''"
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l nodes -d 'Number of nodes' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l ppn -d 'Processes on each node' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l rank -d 'Simulate only this rank, instead of all' -r
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l by-node -d 'Assign ranks to nodes one by one instead of in blocks'
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -l keep-master -d 'Keep the launcher\'s own master, which this machine cannot reach (node0 and so on)'
complete -c mpienv -n "__fish_mpienv_using_subcommand simulate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpienv -n "__fish_mpienv_using_subcommand completions" -s h -l help -d 'Print help'
complete -c mpienv -n "__fish_mpienv_using_subcommand man" -s h -l help -d 'Print help'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "export" -d 'Print assignments for eval: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "exec" -d 'Run a command with the variables set (replaces this process)'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "launch" -d 'Start this node\'s workers, and stop them all when one fails'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "show" -d 'Show each value and where it comes from'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "doctor" -d 'Show each value, and find problems on this host'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "check" -d 'Test whether all ranks can meet at the master, and name the missing ones'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "simulate" -d 'Print the environments that a launcher would create, or run a command in each'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "completions" -d 'Print a completion script for a shell'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "man" -d 'Print the manual page'
complete -c mpienv -n "__fish_mpienv_using_subcommand help; and not __fish_seen_subcommand_from export exec launch show doctor check simulate completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

function __fish_mpienv_placeholders
    set -l before (commandline -ct | string replace -r "^['\"]" '' | string replace -r '\{[^{]*$' '')
    printf '%s\n' \
        "$before"'{rank}'\t'the number of this process in the job, from 0' \
        "$before"'{world_size}'\t'the number of processes in the job' \
        "$before"'{local_rank}'\t'the number of this process on its node, from 0' \
        "$before"'{local_world_size}'\t'the number of processes on this node' \
        "$before"'{nproc_per_node}'\t'the same as local_world_size, as launchers name it' \
        "$before"'{node_rank}'\t'the number of this node, from 0' \
        "$before"'{nnodes}'\t'the number of nodes' \
        "$before"'{master_addr}'\t'the host of rank 0: a name, or an address without brackets' \
        "$before"'{master_port}'\t'the port at the host of rank 0' \
        "$before"'{master}'\t'host:port of rank 0, with an IPv6 address in brackets' \
        "$before"'{own_addr}'\t'this host\'s own address on the way to rank 0' \
        "$before"'{interface}'\t'the network interface with that address' \
        "$before"'{restart}'\t'how often the job was restarted, from 0' \
        "$before"'{hosts}'\t'the hosts of all nodes, in order, with commas' \
        "$before"'{secret}'\t'a random secret of all ranks, for a variable: mpienv exec --template --meet 600 -- env NAME={secret} CMD...' \
        "$before"'{first_node}'\t'keeps the word on node 0 only' \
        "$before"'{other_nodes}'\t'keeps it on the others only' \

end

complete -c mpienv -n "__fish_mpienv_using_subcommand exec launch; and contains -- --template (commandline -opc); and string match -q '*{*' -- (commandline -ct)" -a "(__fish_mpienv_placeholders)"
