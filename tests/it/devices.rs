//! What the commands say about a host's devices: `show`, `doctor`, and `launch` before and after its
//! workers run.

use std::process::{Child, Command, Output, Stdio};

use crate::support::machine::Machine;
use crate::support::port::free_port;
use crate::support::timeout::PATIENT;
use crate::support::tool::clean;

/// A host with so many GPUs of NVIDIA on its PCI bus, whose driver is loaded.
fn host(gpus: usize) -> Machine {
    let machine = Machine::new("two_sockets");
    for number in 0..gpus {
        let address = format!("0000:{number}7:00.0");
        let pci = format!("sys/bus/pci/devices/{address}");
        machine.write(&format!("{pci}/class"), "0x030200");
        machine.write(&format!("{pci}/vendor"), "0x10de");
        machine.write(&format!("{pci}/device"), "0x2335");
        let information = format!("proc/driver/nvidia/gpus/{address}/information");
        machine.write(&information, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 83");
        machine.write(&format!("dev/nvidia{number}"), "");
    }
    machine.write("dev/nvidiactl", "");
    machine
}

/// A command on that host.
fn on(machine: &Machine, words: &[&str]) -> Command {
    let mut command = clean("mpienv");
    command.args(words).env("MPIENV_HOST_ROOT", machine.root());
    command
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn show_and_doctor_have_a_row_for_devices_where_the_host_has_any() {
    let (with, without) = (host(2), host(0));
    let printed = |machine: &Machine, words: &[&str], list: Option<&str>| {
        let mut command = on(machine, words);
        command.envs(list.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
        text(command.output().unwrap().stdout)
    };
    for words in [&["show"][..], &["doctor"]] {
        let row = |list| {
            let text = printed(&with, words, list);
            let row = text.lines().find(|line| line.starts_with("devices ")).unwrap();
            row.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(None), "devices 2 NVIDIA H200, /dev/nvidia*");
        assert_eq!(row(Some("1")), "devices 1 of 2 NVIDIA H200, CUDA_VISIBLE_DEVICES=1");
        assert!(!printed(&without, words, None).contains("\ndevices "));
        let words = [words, &["--json"]].concat();
        let object = |machine| serde_json::from_str(&printed(machine, &words, None)).unwrap();
        let object: [serde_json::Value; 2] = [&with, &without].map(object);
        let expected = serde_json::json!({
            "count": 2, "visible": 2, "models": ["NVIDIA H200"], "source": "/dev/nvidia*"
        });
        assert_eq!([&object[0]["devices"], &object[1]["devices"]], [&expected, &().into()]);
    }
}

#[test]
fn a_node_with_fewer_devices_than_ranks_is_a_warning_unless_a_list_says_more() {
    let machine = host(1);
    let ranks = |more: &[(&str, &str)]| {
        let mut command = on(&machine, &["show"]);
        command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
        command.env("LOCAL_WORLD_SIZE", "2").envs(more.iter().copied());
        text(command.output().unwrap().stdout)
    };
    let warning = "warning [few-devices]: this node has 1 device (/dev/nvidia*) for its 2 ranks\n";
    assert!(ranks(&[]).contains(warning), "{}", ranks(&[]));
    // Where a program uses no device, a user hides them all.
    let hidden = ranks(&[("CUDA_VISIBLE_DEVICES", "-1")]);
    assert!(!hidden.contains("few-devices") && !hidden.contains("warning ["), "{hidden}");
    let alone = ranks(&[("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")]);
    assert!(!alone.contains("few-devices"), "{alone}");
}

/// What rank 0 of two ranks on one host prints, each with its list of devices.
fn doctor(machine: &Machine, lists: [Option<&str>; 2]) -> String {
    let port = free_port().to_string();
    let start = |(rank, list): (usize, Option<&str>)| -> Child {
        let mut command = on(machine, &["doctor", "--timeout", PATIENT]);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", &port)]);
        command.env("MASTER_ADDR", "127.0.0.1").envs(list.map(|own| ("CUDA_VISIBLE_DEVICES", own)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = lists.into_iter().enumerate().map(start).collect();
    let outputs = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
    text(outputs.collect::<Vec<Output>>().swap_remove(0).stdout)
}

#[test]
fn doctor_finds_two_ranks_that_see_the_same_single_device() {
    let host_name = mpienv::host_name().unwrap();
    let finding = |device: &str| {
        format!(
            "warning [device-shared]: on {host_name}, ranks 0-1 see only the same device, {device}\n"
        )
    };
    let four = host(4);
    let same = doctor(&four, [Some("2"), Some("2")]);
    assert!(same.contains(&finding("0000:27:00.0")), "{same}");
    let uuid = doctor(&four, [Some("GPU-8932f937"), Some("GPU-8932f937")]);
    assert!(uuid.contains(&finding("GPU-8932f937")), "{uuid}");
    let one = doctor(&host(1), [None, None]);
    assert!(one.contains(&finding("0000:07:00.0")) && one.contains("[few-devices]"), "{one}");
    for lists in [[Some("2"), Some("3")], [Some("0,1"), Some("0,1")], [None, None]] {
        let text = doctor(&four, lists);
        assert!(!text.contains("device-shared"), "{lists:?} {text}");
    }
}

#[test]
fn launch_says_that_it_starts_more_workers_than_devices_before_and_after_a_failure() {
    let machine = host(1);
    let launched = |workers: &str, more: &[&str], script: &str| {
        let words = [&["launch", "--nproc-per-node", workers][..], more, &["--"]].concat();
        let mut command = on(&machine, &words);
        command.args(["sh", "-c", script]);
        text(command.output().unwrap().stderr)
    };
    let what = "this node has 1 device (/dev/nvidia*) for its 2 ranks";
    let said = launched("2", &[], "true");
    assert!(said.starts_with(&format!("warning [few-devices]: {what}\n")), "{said}");
    assert!(!said.contains("a reason may be"), "{said}");
    // Its last worker asks for a device that is not there.
    let failed = launched("2", &[], "test $LOCAL_RANK = 0 && exec sleep 3000; exit 1");
    let reason = format!("mpienv: a reason may be that {what}\nmpienv: rank 1 ");
    assert!(failed.contains(&reason), "{failed}");
    for quiet in [launched("2", &["-q"], "exit 1"), launched("1", &[], "exit 1")] {
        assert!(!quiet.contains("device"), "{quiet}");
    }
}
