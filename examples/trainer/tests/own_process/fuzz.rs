//! Whatever a file holds: it is either read correctly, or refused with an error that names it.
//!
//! Each test tries inputs for a second, or for `MPIENV_FUZZ_SECONDS`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::support::mutation::fuzz;
use flate2::Compression;
use flate2::write::GzEncoder;
use mpienv::collective::Group;
use mpienv_sharding::checkpoint::Checkpoint;
use mpienv_sharding::file::tensor_file::{Dtype, NamedTensor, TensorFile};
use mpienv_sharding::network::Node;
use mpienv_sharding::operator::Operator;
use mpienv_sharding::strategy::Strategy;
use mpienv_trainer::batch::Order;
use mpienv_trainer::checkpoint::{Checkpoints, Position, Run, Settings};
use mpienv_trainer::data::digits;
use mpienv_trainer::data::idx::{self, IMAGES_MAGIC, IdxFile, LABELS_MAGIC};
use mpienv_trainer::model::Model;
use mpienv_trainer::model::linear::Linear;
use mpienv_trainer::train::TrainConfig;
use proptest::prelude::*;

/// A file with the given bytes, always at the same path.
struct File(tempfile::TempDir);

impl File {
    fn new() -> File {
        File(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("file")
    }

    fn holds(&self, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(), bytes).unwrap();
        self.path()
    }
}

/// Asserts that an error names the file, on one line.
fn names(error: &dyn std::error::Error, path: &Path) -> Result<(), TestCaseError> {
    let text = error.to_string();
    prop_assert!(text.starts_with(&path.display().to_string()), "{text}");
    Ok(())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn any_idx_file_has_as_many_items_as_it_says_or_is_refused() {
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    };
    let images =
        [numbers(&[IMAGES_MAGIC, 2, 28, 28]), (0..1568).map(|i| (i % 251) as u8).collect()]
            .concat();
    let labels = [numbers(&[LABELS_MAGIC, 5]), vec![7, 0, 9, 1, 2]].concat();
    let none = numbers(&[IMAGES_MAGIC, 0, 28, 28]);
    let seeds = [gzip(&images), gzip(&labels), images, labels, none];
    let words: &[&[u8]] =
        &[b"\0\0\x08\x03", b"\0\0\x08\x01", b"\0\0\0\x1c", b"\xff\xff\xff\xff", b"\x1f\x8b\x08\0"];
    let file = File::new();
    fuzz("IDX", &seeds, words, |bytes| {
        let path = file.holds(bytes);
        let plain =
            bytes.get(4..8).map(|count| u32::from_be_bytes(count.try_into().unwrap()) as usize);
        let packed = bytes.starts_with(b"\x1f\x8b");
        match idx::open(&path, IMAGES_MAGIC).and_then(IdxFile::read) {
            Ok(pixels) => {
                prop_assert!(packed && pixels.len() % 784 == 0 || Some(pixels.len() / 784) == plain)
            }
            Err(error) => names(&error, &path)?,
        }
        match idx::open(&path, LABELS_MAGIC).and_then(IdxFile::read) {
            Ok(labels) => prop_assert!(packed || Some(labels.len()) == plain),
            Err(error) => names(&error, &path)?,
        }
        Ok(())
    });
}

fn tensor(name: &str, numbers: Dtype, shape: &[usize]) -> NamedTensor {
    let count: usize = shape.iter().product();
    let bytes = (0..count * numbers.bitsize() / 8).map(|i| i as u8).collect();
    NamedTensor { name: name.to_owned(), numbers, shape: shape.to_vec(), bytes }
}

/// The bytes of a file of tensors.
fn written(about: &str, tensors: Vec<NamedTensor>) -> Vec<u8> {
    let file = File::new();
    TensorFile { about: about.to_owned(), tensors }.write(&file.path()).unwrap();
    fs::read(file.path()).unwrap()
}

/// Gives a checkpoint the digest of what it holds, so that what follows the digest's check is tried
/// too.
fn seal(path: &Path) {
    let Ok(TensorFile { about, tensors }) = TensorFile::read(path) else { return };
    let Ok(entries) = serde_json::from_str(&about) else { return };
    TensorFile::sealed(entries, tensors).write(path).unwrap();
}

/// Words that change the meaning of such a file's header.
const HEAD_WORDS: &[&[u8]] = &[
    b"\"F32\"",
    b"\"F64\"",
    b"\"BF16\"",
    b"\"I64\"",
    b"[18446744073709551615,2]",
    b"[0,18446744073709551615]",
    b"\"data_offsets\":[0,4]",
    b"{\"",
    b"\\",
    b"null",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"[[[[[[[[",
];

#[test]
fn any_file_of_tensors_has_the_bytes_of_its_shapes_or_is_refused() {
    let seeds = [
        written(
            "{\"steps\":3}",
            vec![tensor("a", Dtype::F32, &[2, 3]), tensor("b", Dtype::F64, &[])],
        ),
        written(
            "",
            vec![tensor("weight", Dtype::F32, &[10, 4]), tensor("empty", Dtype::F32, &[0, 5])],
        ),
        written("x", Vec::new()),
    ];
    let file = File::new();
    fuzz("files of tensors", &seeds, HEAD_WORDS, |bytes| {
        let path = file.holds(bytes);
        match TensorFile::read(&path) {
            Ok(read) => {
                for tensor in &read.tensors {
                    let count: usize = tensor.shape.iter().product();
                    prop_assert_eq!(tensor.bytes.len(), count * tensor.numbers.bitsize() / 8);
                    prop_assert_eq!(read.get(&tensor.name), Some(tensor));
                }
            }
            Err(error) => names(&error, &path)?,
        }
        Ok(())
    });
}

#[test]
fn any_part_of_a_sharded_checkpoint_is_merged_or_refused() {
    let about = |rank: u32, world: u32, offset: usize| {
        let place = |name: &str| {
            format!(
                "{{\"name\":\"{name}\",\"shape\":[4,2],\"layout\":\"[0, -]\",\"offset\":[{offset},0]}}"
            )
        };
        format!(
            "{{\"rank\":{rank},\"world\":{world},\"mesh\":\"(2)\",\"strategies\":\"a ((2,1),(1,1))\",\"steps\":3,\"origin\":{{\"plan\":\"ab\",\"start\":\"cd\"}},\"places\":[{},{}]}}",
            place("w"),
            place("w.momentum")
        )
    };
    let part = |rank, offset| {
        let tensors =
            vec![tensor("w", Dtype::F32, &[2, 2]), tensor("w.momentum", Dtype::F32, &[2, 2])];
        written(&about(rank, 2, offset), tensors)
    };
    let whole = written(
        &about(0, 1, 0),
        vec![tensor("w", Dtype::F32, &[4, 2]), tensor("w.momentum", Dtype::F32, &[4, 2])],
    );
    let (file, other) = (File::new(), File::new());
    let second = other.holds(&part(1, 2));
    seal(&second);
    let second = (second.clone(), Checkpoint::read(&second).unwrap().0);
    let words: Vec<&[u8]> = [
        HEAD_WORDS,
        &[b"\\\"world\\\":4294967295", b"\\\"shape\\\":[4,2]", b"\\\"offset\\\":[2,0]"],
    ]
    .concat();
    fuzz("sharded checkpoints", &[part(0, 0), part(1, 2), whole], &words, |bytes| {
        let path = file.holds(bytes);
        seal(&path);
        match Checkpoint::read(&path) {
            Ok((first, _)) => {
                for parts in
                    [vec![(path.clone(), first.clone())], vec![(path, first), second.clone()]]
                {
                    if let Ok(merged) = Checkpoint::merge(&parts) {
                        prop_assert_eq!(merged.steps, parts[0].1.steps);
                    }
                }
            }
            Err(error) => names(&error, &path)?,
        }
        Ok(())
    });
}

#[test]
fn a_run_goes_on_from_a_true_checkpoint_or_begins_anew() {
    let data = digits::draw();
    let plan =
        TrainConfig { epochs: 1, batch_size: 32, learning_rate: 0.01, seed: 1, order: Order::File };
    let shapes = Linear::new(32).parameter_shapes();
    let count: usize = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let kept: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let run = || Run::new(&plan, None, shapes.clone(), 1, &data.train);
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { folder: Some(folder.path().to_owned()), every: None, resume: true };
    let begin = |parameters: &mut Vec<f32>| {
        Checkpoints::begin(&settings, run(), parameters, &mut Group::alone(), &mut |_| {})
            .map(|begun| begun.start())
    };
    let position = Position { epoch: 3, step: 7, loss_sum: 0.5 };
    let saved =
        Checkpoints::begin(&settings, run(), &mut kept.clone(), &mut Group::alone(), &mut |_| {})
            .unwrap();
    let path = saved.save(position, &kept, &mut Group::alone()).unwrap().unwrap();
    let seed = fs::read(&path).unwrap();
    for other in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(other.unwrap().path()).unwrap();
    }
    fuzz("checkpoints", &[seed], HEAD_WORDS, |bytes| {
        fs::write(&path, bytes).unwrap();
        let mut parameters = vec![1.0; count];
        match begin(&mut parameters) {
            Ok(start) if start == position => prop_assert!(parameters == kept, "other parameters"),
            Ok(start) => {
                prop_assert_eq!(start, Position::default());
                prop_assert!(
                    parameters.iter().all(|&number| number == 1.0),
                    "parameters of nothing"
                );
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.contains(&folder.path().display().to_string()), "{text}");
            }
        }
        Ok(())
    });
}

#[test]
fn any_strategy_is_printed_as_it_is_read_and_checked_without_panic() {
    let seeds =
        ["((2,4),(4,1))", "((8, 1), (8,))", " ( ( 1 , 1 ) , ( 1 ) ) ", "((2,4))", "((4,2),(4,))"];
    let seeds = seeds.map(|text| text.as_bytes().to_vec());
    let words: &[&[u8]] = &[
        b"(",
        b")",
        b",",
        b"((",
        b"))",
        b"0",
        b"4294967295",
        b"4294967296",
        b"-1",
        b" ",
        b"\xc2\xa0",
    ];
    let shapes = [
        vec![vec![16, 32], vec![32, 16]],
        vec![vec![16, 8], vec![16]],
        vec![vec![16, 8], vec![8]],
        vec![vec![16, 8]],
    ];
    fuzz("strategies", &seeds, words, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        match text.parse::<Strategy>() {
            Ok(strategy) => {
                prop_assert_eq!(strategy.to_string().parse(), Ok(strategy.clone()));
                prop_assert_eq!(format!("{strategy:#}").parse(), Ok(strategy.clone()));
                for operator in
                    [Operator::MatMul, Operator::BiasAdd, Operator::Relu, Operator::Xent]
                {
                    for shapes in &shapes {
                        let (name, shapes) = ("op".to_owned(), shapes.clone());
                        let node = Node { name, operator, shapes, parameter: None, strategy: None };
                        if let Ok(cuts) = strategy.check(&node, 8) {
                            let parts: u32 = cuts.iter().product();
                            prop_assert!(parts > 0 && 8 % parts == 0, "{cuts:?}");
                        }
                    }
                }
            }
            Err(error) => {
                prop_assert!(error.to_string().contains(" is not a strategy: "), "{error}")
            }
        }
        Ok(())
    });
}
