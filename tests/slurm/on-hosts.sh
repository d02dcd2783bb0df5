#!/usr/bin/env bash
# Starts a real Slurm on nodeA and nodeB of tests/hosts/two-hosts.sh, then runs a command on nodeA. The daemons stop with
# their hosts.
#
# Usage, on nodeA: on-hosts.sh DIR CMD...   DIR is a folder that both hosts see.
# Environment: SLURM_TEST_NODE=gpu gives each node 32 CPUs and 4 GPUs, to Slurm's knowledge. The machine has fewer CPUs, and other
# devices stand in for the GPUs.
# Exit codes: that of CMD, or 122 if Slurm does not start.
set -euo pipefail
dir=$1
shift
export PATH="$PATH:/usr/sbin:/sbin" SLURM_CONF=$dir/slurm.conf

# Starts munge and slurmd on this host; sockets and spool are in the host's own /run.
if [ "$1" = __node ]; then
    mkdir -p /run/slurm
    cp "$dir/munge.key" /run/slurm/munge.key && chmod 600 /run/slurm/munge.key
    setsid munged --foreground --force --key-file=/run/slurm/munge.key --socket=/run/slurm/munge.socket \
        --pid-file=/run/slurm/munged.pid --seed-file=/run/slurm/munged.seed --log-file=/run/slurm/munged.log \
        </dev/null >"$dir/munged.$(hostname).out" 2>&1 &
    for _ in $(seq 24000); do [ ! -S /run/slurm/munge.socket ] || break; sleep 0.05; done
    setsid slurmd -D -f "$SLURM_CONF" -N "$(hostname)" </dev/null >"$dir/slurmd.$(hostname).out" 2>&1 &
    exit
fi

(umask 077 && dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none)
mkdir -p "$dir/state"
node="CPUs=4 State=UNKNOWN"
if [ "${SLURM_TEST_NODE:-}" = gpu ]; then
    node="CPUs=32 Gres=gpu:4 State=UNKNOWN"
    printf 'Name=gpu File=/dev/%s\n' null zero full random >"$dir/gres.conf"
fi
cat >"$SLURM_CONF" <<CONF
$(cat "$(dirname "$0")/both.conf")
SlurmctldHost=nodeA(10.77.0.1)
AuthInfo=socket=/run/slurm/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
PlugStackConfig=$dir/plugstack.conf
GresTypes=gpu
NodeName=nodeA NodeAddr=10.77.0.1 $node
NodeName=nodeB NodeAddr=10.77.0.2 $node
PartitionName=main Nodes=nodeA,nodeB Default=YES MaxTime=INFINITE State=UP
CONF
: >"$dir/plugstack.conf"
# Replaces /etc/slurm/cgroup.conf: says where to look, and that cgroups are not used.
echo "CgroupPlugin=cgroup/v1" >"$dir/cgroup.conf"

"$0" "$dir" __node
setsid slurmctld -D -f "$SLURM_CONF" </dev/null >"$dir/slurmctld.out" 2>&1 &
ssh nodeB "$0" "$dir" __node
for _ in $(seq 12000); do
    if [ "$(sinfo -h -o '%D %t' 2>/dev/null)" = "2 idle" ]; then
        exec "$@"
    fi
    sleep 0.1
done
tail -n 20 "$dir"/*.out >&2
exit 122
