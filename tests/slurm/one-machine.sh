#!/usr/bin/env bash
# A real Slurm on this machine: one controller, one node, for tests.
#
# Needs root and Debian's packages munge, slurmctld, slurmd, slurm-client and
# slurm-wlm-basic-plugins. Everything is kept in one temporary folder: a separate key, sockets and
# configuration. /etc/slurm and /etc/munge are neither read nor written.
#
# Usage: one-machine.sh up | down | run CMD...
#   up          start it, unless it is running
#   run CMD...  run CMD with SLURM_CONF set: `one-machine.sh run srun -n4 hostname`
#   down        stop it, and remove the folder
# The folder is $MPIENV_SLURM_DIR, /tmp/mpienv-slurm by default. Exit codes: that of CMD,
# 120 usage, 121 a requirement is missing, 122 Slurm did not start.
set -euo pipefail

dir=${MPIENV_SLURM_DIR:-/tmp/mpienv-slurm}
export PATH="$PATH:/usr/sbin:/sbin"

fail() { local code=$1; shift; echo "one-machine.sh: $*" >&2; exit "$code"; }

# The start time of a process: it tells our process from another one that later got the same PID.
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

remember() { echo "$2 $(start_of "$2")" >"$dir/$1.started"; }

pid_of() {
    local pid start
    read -r pid start 2>/dev/null <"$dir/$1.started" || return 1
    [ -n "$start" ] && [ "$(start_of "$pid")" = "$start" ] && echo "$pid"
}

runs() { pid_of munged >/dev/null && pid_of slurmctld >/dev/null && pid_of slurmd >/dev/null; }

# A port without a listener, from a range below the one for outgoing connections.
free_port() {
    local port
    for port in $(shuf -i 9000-9799 -n 50); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
    return 1
}

configure() {
    local host ctld d
    host=$(hostname -s) ctld=$(free_port) d=$(free_port)
    while [ "$d" = "$ctld" ]; do d=$(free_port); done
    mkdir -p "$dir/state" "$dir/spool" "$dir/tmp"
    cat >"$dir/slurm.conf" <<CONF
$(cat "$(dirname "$0")/both.conf")
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$ctld
SlurmdPort=$d
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
PlugStackConfig=$dir/plugstack.conf
TmpFS=$dir/tmp
SchedulerParameters=batch_sched_delay=0
NodeName=$host NodeHostname=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    : >"$dir/plugstack.conf"
    # Replaces /etc/slurm/cgroup.conf: says where to look, and that cgroups are not used.
    echo "CgroupPlugin=cgroup/v1" >"$dir/cgroup.conf"
}

# Waits until a command succeeds; a hang ends after 20 minutes.
await() {
    local end=$((SECONDS + 1200))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

begin() { # NAME CMD...: starts a daemon in foreground mode, in a separate session
    local name=$1; shift
    setsid "$@" </dev/null >>"$dir/$name.out" 2>&1 &
    remember "$name" $!
}

up() {
    local tool
    [ "$(id -u)" = 0 ] || fail 121 "needs root"
    for tool in munged slurmctld slurmd srun scontrol; do
        command -v "$tool" >/dev/null || fail 121 "no $tool"
    done
    runs && return
    down
    (umask 077 && mkdir "$dir" && dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none)
    chmod 711 "$dir"
    configure
    export SLURM_CONF=$dir/slurm.conf
    begin munged munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
        --pid-file="$dir/munged.pid" --seed-file="$dir/munged.seed" --log-file="$dir/munged.log"
    await test -S "$dir/munge.socket" || give_up munged
    begin slurmctld slurmctld -D -f "$dir/slurm.conf"
    begin slurmd slurmd -D -f "$dir/slurm.conf" -N "$(hostname -s)"
    await idle || give_up slurmctld slurmd
}

idle() { [ "$(sinfo -h -o %t)" = idle ]; }

give_up() {
    local name
    for name in "$@"; do
        tail -n 20 "$dir/$name.out" "$dir/$name.log" >&2 2>/dev/null || true
    done
    down
    fail 122 "$* did not come up"
}

down() {
    local name pid
    if [ -e "$dir/slurm.conf" ] && runs; then
        # Stops the steps as well: their daemons would outlive slurmd.
        SLURM_CONF=$dir/slurm.conf scancel --user=root 2>/dev/null || true
        SLURM_CONF=$dir/slurm.conf await no_jobs || true
    fi
    for name in slurmd slurmctld munged; do
        pid=$(pid_of "$name") || continue
        kill "$pid" 2>/dev/null || true
        await gone "$name" || kill -9 "$pid" 2>/dev/null || true
    done
    # Only removes a folder that this script has created.
    [ ! -e "$dir/munge.key" ] || rm -rf -- "$dir"
}

no_jobs() { [ -z "$(squeue -h)" ]; }
gone() { ! pid_of "$1" >/dev/null; }

case ${1:-} in
up) up ;;
down) down ;;
run)
    shift
    [ $# -gt 0 ] || fail 120 "run what?"
    runs || fail 122 "it does not run: one-machine.sh up"
    SLURM_CONF=$dir/slurm.conf exec "$@"
    ;;
*) fail 120 "usage: one-machine.sh up | down | run CMD..." ;;
esac
