# shellcheck shell=bash
# The part `torch` of tests/real_programs/run, which reads this file.

# Builds the wheel as it is handed to others.
build_wheel() {
    python3 -m venv "$scratch/pip"
    "$scratch/pip/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch/wheel" ./src/python
}

# An environment with a version of PyTorch and the wheel. Puts it on PATH.
install_torch() {
    # PyTorch's own tests need expecttest.
    local home=$target/python/torch-$1 packages=("torch==$1" numpy expecttest==0.3.0)
    if [ "$(cat "$home/installed" 2>/dev/null)" != "${packages[*]}" ]; then
        python3 -m venv --clear "$home"
        "$home/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
        echo "${packages[*]}" >"$home/installed"
    fi
    [ -d "$scratch/wheel" ] || build_wheel
    "$home/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$scratch"/wheel/*.whl
    export PATH=$home/bin:$outside
}

# as_over_gloo PROGRAM... -- LAUNCHER...: the lines of all ranks are the same over gloo and over mpienv.
as_over_gloo() {
    local program=() backend output expected=
    while [ "$1" != -- ]; do program+=("$1"); shift; done
    shift
    for backend in gloo mpienv; do
        printf '== %s\n' "$* ${program[*]//BACKEND/$backend}"
        output=$(timeout $limit "$@" "${program[@]//BACKEND/$backend}" 2>"$scratch/stderr") ||
            { fail "$output$(cat "$scratch/stderr")" "exit code $?"; return; }
        output=$(lines_of_ranks <<<"$output")
        [ -n "$expected" ] || expected=$output
        [ -n "$output" ] && [ "$output" = "$expected" ] || {
            fail "$(diff <(echo "$expected") <(echo "$output"))" "not as over gloo"
            return
        }
    done
    printf '%s\nok\n' "$output"
}

# on_both SECRET PROGRAM...: one rank on each of two hosts, over gloo and over mpienv, with or without a secret of the job.
on_both() {
    local secret=$1 backend node nodes output expected=
    shift
    for backend in gloo mpienv; do
        printf '== two hosts, secret %s: %s\n' "${secret:-none}" "${*//BACKEND/$backend}"
        nodes=()
        for node in 0 1; do
            RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29512 \
                timeout $limit "$hosts" exec "$([ $node = 0 ] && echo nodeA || echo nodeB)" -- \
                env ${secret:+MPIENV_TOKEN=$secret} mpienv exec -- "${@//BACKEND/$backend}" >"$scratch/node.$node" 2>&1 &
            nodes+=($!)
        done
        for node in 0 1; do wait "${nodes[node]}" || fail "$(cat "$scratch/node.$node")" "exit code $?"; done
        output=$(cat "$scratch/node.0" "$scratch/node.1" | lines_of_ranks)
        [ -n "$expected" ] || expected=$output
        [ -n "$output" ] && [ "$output" = "$expected" ] || { fail "$output" "not $expected"; return; }
    done
    printf '%s\nok\n' "$output"
}

# behind_firewall: only the master's port is open between two hosts. Over mpienv, the rank that cannot connect must say so.
behind_firewall() {
    local node nodes=() said='did not reach rank 0 .* within 20 s: no answer to the connection: .* firewall'
    local program='import datetime, mpienv_rs.torch, torch.distributed as d
d.init_process_group("mpienv", timeout=datetime.timedelta(seconds=20))
d.barrier()'
    printf '== two hosts, a firewall that opens only the port of the master\n'
    "$hosts" exec nodeA -- iptables -A INPUT -p tcp --syn -s 10.77.0.2 ! --dport 29512 -j DROP
    for node in 0 1; do
        RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29512 \
            timeout $limit "$hosts" exec "$([ $node = 0 ] && echo nodeA || echo nodeB)" -- \
            mpienv exec -- python -c "$program" >"$scratch/node.$node" 2>&1 &
        nodes+=($!)
    done
    for node in 0 1; do
        wait "${nodes[node]}" && fail "$(cat "$scratch/node.$node")" "rank $node has passed the firewall"
    done
    grep -m 1 -oE "$said" "$scratch/node.1" || fail "$(cat "$scratch/node.1")" "rank 1 did not say $said"
}

# restarted: torchrun restarts a job twice, which then sums. Over gloo of some versions, restarted ranks wait for each other forever.
restarted() {
    local words=(torchrun --nproc-per-node 2 --max-restarts 2 "$here/lifecycle.py" mpienv --restart) output
    printf '== %s\n' "${words[*]}"
    output=$(timeout $limit "${words[@]}" 2>&1) || { fail "$output" "exit code $?"; return; }
    [ "$(lines_of_ranks <<<"$output" | grep -c ': attempt 2: 3.0$')" = 2 ] && echo ok || fail "$output" "not two sums"
}

# left_early: a rank exits in the middle of a job. The launcher names it, and not the one whose call fails because of it.
left_early() {
    local code=0 output program='import sys, mpienv_rs.torch, torch, torch.distributed as d
d.init_process_group("mpienv")
d.all_reduce(torch.ones(1))
d.get_rank() == 1 and sys.exit(7)
d.all_reduce(torch.ones(1))'
    printf '== rank 1 exits in the middle of a job\n'
    output=$(timeout $limit mpienv launch --nproc-per-node 2 -- python -c "$program" 2>&1) || code=$?
    [ $code = 7 ] && grep -oE '^mpienv: rank 1 on .* failed with exit code 7' <<<"$output" && echo ok ||
        fail "$output" "exit code $code, and not that of rank 1"
}

outside=$PATH
torch_programs() {
    local version newest=2.15.0 ranks here=$top/tests/real_programs/torch train=$top/examples/pytorch/train.py
    export OMP_NUM_THREADS=1
    [ -z "${DATA_PATH:-}" ] || export DATA_PATH=$(realpath "$DATA_PATH")
    for version in ${MPIENV_TORCH:-$newest}; do
        install_torch "$version"
        for ranks in 2 4; do
            as_over_gloo python "$train" --backend BACKEND -- mpirun --oversubscribe -n $ranks mpienv exec --
        done
        as_over_gloo python "$train" --backend BACKEND -- mpiexec.hydra -n 2 mpienv exec --
        as_over_gloo python "$train" --backend BACKEND -- mpienv launch --nproc-per-node 2 --
        as_over_gloo "$train" --backend BACKEND -- torchrun --nproc-per-node 2
        step_of torchrun --nproc-per-node 2 --no-python mpienv check
        step_of mpirun -n 1 mpienv exec --per-node -- torchrun --nproc-per-node 2 --no-python mpienv check
        for ranks in 2 3; do
            as_over_gloo python "$here/parallel.py" BACKEND "$scratch/checkpoint" -- mpienv launch --nproc-per-node $ranks --
            step_of mpienv launch --nproc-per-node $ranks -- python "$here/operations.py"
        done
        step_of python "$here/own_tests.py"
        step_of mpienv launch --nproc-per-node 2 -- python "$here/resources.py"
        as_over_gloo python "$here/lifecycle.py" BACKEND -- mpienv launch --nproc-per-node 2 --
        restarted
        left_early
        step_of python "$here/arguments.py"
        step_of python "$here/messages.py"
        step_of python "$here/faults.py"
        if can_create_hosts; then
            "$hosts" up -n 2
            on_both "" python "$train" --backend BACKEND
            on_both sesame python "$train" --backend BACKEND
            behind_firewall
            "$hosts" down
        fi
        # The page has the figures of the newest.
        [ "$version" != $newest ] || step_of python "$here/table.py" --check
    done
    unset OMP_NUM_THREADS
}

# Runs a command, which says itself what is wrong.
step_of() {
    printf '== %s\n' "$*"
    timeout $limit "$@" || fail "" "exit code $?"
}
