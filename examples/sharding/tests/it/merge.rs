//! `quickstart merge`, and runs that resume from what it wrote.

use std::fs;

use super::quickstart::{assert_fails, losses, quickstart, stdout};
use crate::support::files::files;
use mpienv_sharding::file::tensor_file::TensorFile;

#[test]
fn merged_checkpoints_resume_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let whole = stdout(quickstart(path, &["--threads", "8", "--output", "whole"]));
    stdout(quickstart(path, &["--threads", "8", "--epochs", "3", "--output", "half"]));
    let folders: Vec<String> = (0..8).map(|rank| format!("half/device/{rank}")).collect();
    let mut merge = vec!["merge", "-o", "merged.safetensors"];
    merge.extend(folders.iter().map(String::as_str));
    let said = stdout(quickstart(path, &merge));
    assert_eq!(said, "merged.safetensors: 12 steps, merged from 8 checkpoints\n");

    let resumed = stdout(quickstart(
        path,
        &["--threads", "8", "--resume-from", "merged.safetensors", "--output", "half"],
    ));
    let rest: Vec<&str> = whole.lines().skip(8 * 12).collect();
    assert_eq!(resumed.lines().collect::<Vec<_>>(), rest);
    assert_eq!(files(&path.join("half/device")), files(&path.join("whole/device")));

    // Half as many ranks use half as many of the same samples: the mean is the same.
    let arguments =
        ["--threads", "4", "--strategy", "((2,2),(2,1))", "--resume-from", "merged.safetensors"];
    let resumed = stdout(quickstart(path, &arguments));
    let last = |text: &str| losses(text, "epoch: 5 step: 4")[0];
    assert!((last(&resumed) - last(&whole)).abs() < 1e-6);
}

#[test]
fn an_integrated_checkpoint_is_the_merged_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    stdout(quickstart(path, &["--threads", "8", "--epochs", "1"]));
    let folders: Vec<String> = (0..8).map(|rank| format!("device/{rank}")).collect();
    let mut merge = vec!["merge"];
    merge.extend(folders.iter().map(String::as_str));
    stdout(quickstart(path, &merge));
    let merged = fs::read(path.join("merged.safetensors")).unwrap();

    stdout(quickstart(
        path,
        &["--threads", "8", "--epochs", "1", "--integrated", "--output", "whole"],
    ));
    for rank in 0..8 {
        assert!(
            fs::read(path.join(format!("whole/device/{rank}/CKP-1_4.safetensors"))).unwrap()
                == merged,
            "{rank}"
        );
    }
    let text = stdout(quickstart(
        path,
        &["--threads", "4", "--resume-from", "whole/device/5/CKP-1_4.safetensors"],
    ));
    assert!(text.starts_with("epoch: 2 step: 1, loss is "), "{text}");
}

#[test]
fn checkpoints_that_cannot_be_merged_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    stdout(quickstart(path, &["--threads", "8", "--epochs", "1"]));
    let merge = |folders: &[&str]| quickstart(path, &[&["merge"], folders].concat());
    assert_fails(
        &merge(&["device/0", "device/1", "device/4"]),
        1,
        "of the 512 numbers of w, at most 384 are in the 3 checkpoints: name the folders of all 8 ranks",
    );
    assert_fails(
        &merge(&["device/0", "device/1", "device/4", "device/5"]),
        1,
        "256 of the 512 numbers of w, starting with number 256, are in none of the 4 checkpoints: name the folders of all 8 ranks",
    );
    assert_fails(&merge(&["saved_graph"]), 1, "saved_graph: has no CKP-EPOCH_STEP.safetensors");
    assert_fails(&merge(&["nowhere"]), 1, "nowhere: No such file or directory");
    // A replica with a different number.
    let replica = path.join("device/4/CKP-1_4.safetensors");
    let mut diverged = TensorFile::read(&replica).unwrap();
    let entries = diverged.entries().and_then(|entries| diverged.verify(entries)).unwrap();
    let momentum = diverged.tensors.iter_mut().find(|tensor| tensor.name == "w2.momentum").unwrap();
    *momentum.bytes.last_mut().unwrap() ^= 1;
    TensorFile::sealed(entries, diverged.tensors).write(&replica).unwrap();
    assert_fails(
        &merge(&["device/0", "device/1", "device/2", "device/3", "device/4"]),
        1,
        "device/4/CKP-1_4.safetensors: number 63 of w2.momentum differs from that in device/0/CKP-1_4.safetensors",
    );
    // From a different strategy.
    stdout(quickstart(path, &["--threads", "4", "--epochs", "1", "--output", "four"]));
    assert_fails(
        &merge(&["device/0", "four/device/1"]),
        1,
        "only parts of one step of one run can be merged",
    );
    // A truncated file.
    let cut = path.join("device/5/CKP-1_4.safetensors");
    fs::write(&cut, &fs::read(&cut).unwrap()[..700]).unwrap();
    let all: Vec<String> = (0..8).map(|rank| format!("device/{rank}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_fails(
        &merge(&all),
        1,
        "device/5/CKP-1_4.safetensors: is not a complete safetensors file",
    );
    assert!(!path.join("merged.safetensors").exists());
    // One part is not a whole checkpoint.
    let resume =
        quickstart(path, &["--threads", "8", "--resume-from", "device/3/CKP-1_4.safetensors"]);
    assert_fails(&resume, 1, "device/3/CKP-1_4.safetensors: has only the parts of rank 3 of 8");
}

#[test]
fn a_checkpoint_in_the_name_of_another_step_or_rank_is_refused_naming_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    stdout(quickstart(path, &["--threads", "2", "--epochs", "1"]));
    let copy = |from: &str, to: &str| fs::copy(path.join(from), path.join(to)).unwrap();
    for rank in [0, 1] {
        copy(
            &format!("device/{rank}/CKP-1_4.safetensors"),
            &format!("device/{rank}/CKP-7_2.safetensors"),
        );
    }
    let merge = ["merge", "device/0", "device/1"];
    assert_fails(
        &quickstart(path, &merge),
        1,
        "device/0/CKP-7_2.safetensors says epoch 7, step 2 in its name, but holds epoch 1, step 4: it was renamed or copied; \
         name it CKP-1_4.safetensors, or move it away",
    );
    for rank in [0, 1] {
        fs::remove_file(path.join(format!("device/{rank}/CKP-7_2.safetensors"))).unwrap();
    }
    copy("device/0/CKP-1_4.safetensors", "device/1/CKP-1_4.safetensors");
    assert_fails(
        &quickstart(path, &merge),
        1,
        "device/1/CKP-1_4.safetensors is in the folder of rank 1, but holds the parts of rank 0 of 2: it was renamed or \
         copied; put it into folder 0, or name a folder with rank 1's own checkpoints",
    );
    assert!(!path.join("merged.safetensors").exists());
    // A number that is not a rank of two is the name of a run.
    fs::create_dir_all(path.join("runs/12345")).unwrap();
    copy("device/0/CKP-1_4.safetensors", "runs/12345/CKP-1_4.safetensors");
    let resume =
        quickstart(path, &["--threads", "2", "--resume-from", "runs/12345/CKP-1_4.safetensors"]);
    assert_fails(&resume, 1, "runs/12345/CKP-1_4.safetensors: has only the parts of rank 0 of 2");
    // Whole tensors are the same in the folders of all ranks, and a step in another name is still
    // refused.
    stdout(quickstart(path, &["--threads", "2", "--epochs", "1", "--integrated"]));
    stdout(quickstart(path, &["merge", "device/1"]));
    copy("device/1/CKP-1_4.safetensors", "device/1/CKP-1_3.safetensors");
    let resume =
        quickstart(path, &["--threads", "2", "--resume-from", "device/1/CKP-1_3.safetensors"]);
    assert_fails(&resume, 1, "says epoch 1, step 3 in its name, but holds epoch 1, step 4: ");
}

#[test]
fn parts_of_different_runs_are_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let train = |output: &str, more: &[&str]| {
        let common = ["--threads", "4", "--strategy", "((1,4),(4,1))", "--output", output];
        stdout(quickstart(path, &[&common[..], more].concat()));
    };
    let merge = |runs: [&str; 4], output: &str| {
        let parts: Vec<String> =
            (0..4).zip(runs).map(|(rank, run)| format!("{run}/device/{rank}")).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        quickstart(path, &[&["merge", "-o", output], &parts[..]].concat())
    };
    train("a", &["--epochs", "1"]);
    train("seed", &["--epochs", "1", "--seed", "2"]);
    train("lr", &["--epochs", "1", "--lr", "0.4"]);
    train("init", &["--epochs", "1", "--init", "mindspore-1.x"]);
    train("again", &["--epochs", "1"]);
    let refusal = "only parts of one step of one run can be merged";
    for other in ["seed", "lr", "init"] {
        assert_fails(&merge(["a", other, "a", other], "none"), 1, refusal);
    }
    // A second run with the same options has the same parts.
    stdout(merge(["a", "again", "a", "again"], "a.safetensors"));

    // Runs that resume remember where they came from.
    stdout(merge(["lr"; 4], "lr.safetensors"));
    train("from_a", &["--epochs", "2", "--resume-from", "a.safetensors"]);
    train("from_lr", &["--epochs", "2", "--resume-from", "lr.safetensors"]);
    train("whole", &["--epochs", "2"]);
    assert_fails(&merge(["from_a", "from_lr", "from_a", "from_lr"], "none"), 1, refusal);
    stdout(merge(["from_a", "whole", "from_a", "whole"], "both"));
    assert!(!path.join("none").exists());
}
