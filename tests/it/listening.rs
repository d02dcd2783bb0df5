//! Where rank 0 listens.

use crate::support::namespace::unshared;
use crate::support::tool::{is_there, missing};

#[test]
fn rank_0_listens_on_the_masters_own_address_unless_bind_names_another() {
    if !is_there("ip") {
        return;
    }
    // A separate network namespace, in which this host has two addresses besides the loopback ones.
    let script = r#"
        ip link set lo up && ip addr add 10.9.8.1/32 dev lo && ip addr add 10.9.8.2/32 dev lo || exit 9
        export MASTER_PORT=6105 WORLD_SIZE=2
        meet() {
            RANK=0 MASTER_ADDR=10.9.8.1 mpienv check --timeout 1200 --json "$@" > map & zero=$!
            RANK=1 MASTER_ADDR=$rank_1 mpienv check --timeout 1200 2>&1 || echo "rank 1: $?"
            wait $zero || echo "rank 0: $?"
            tr -d ' \n' < map | sed 's/.*"listened":\(\[[^]]*\]\).*/\1\n/'
        }
        cd "$(mktemp -d)"
        rank_1=10.9.8.1 meet
        rank_1=10.9.8.2 meet --bind 10.9.8.2
        rank_1=127.0.0.1 meet --bind 0.0.0.0
        RANK=0 MASTER_ADDR=10.9.8.1 mpienv check --timeout 1 --bind 10.9.8.3 2>&1; echo "$?"
    "#;
    let Some(output) = unshared(&["--net"], script) else { return };
    let text =
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..3], [r#"["10.9.8.1"]"#, r#"["10.9.8.2"]"#, r#"["::"]"#], "{text}");
    assert!(lines[3].starts_with("mpienv: rank 0 cannot listen on 10.9.8.3:6105: "), "{text}");
    assert_eq!(lines[4..], ["3"], "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_host_with_one_loopback_address_or_none_gives_launch_a_port_or_the_systems_reason() {
    if !is_there("ip") {
        return;
    }
    // No host need have IPv6.
    let script = r#"
        launch() { mpienv launch --nproc-per-node 1 -- sh -c 'echo "at $MASTER_ADDR"' 2>&1; echo "$?"; }
        ip link set lo up; ip addr show lo | grep -q inet6 || exit 9
        ip addr del 127.0.0.1/8 dev lo
        MASTER_ADDR=::1 launch
        ip addr del ::1/128 dev lo
        MASTER_ADDR=::1 launch
    "#;
    let Some(output) = unshared(&["--net"], script) else { return };
    if output.status.code() == Some(9) {
        return missing("IPv6");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let without =
        "mpienv: no port is free for rank 0 at 127.0.0.1 and ::1: Cannot assign requested address";
    assert_eq!(lines[..2], ["[0] at ::1", "0"], "{text}");
    assert!(lines[2].starts_with(without) && lines[3..] == ["1"], "{text}");
}
