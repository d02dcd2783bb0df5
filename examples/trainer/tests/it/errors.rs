//! Errors with their sources, in the way that programs print chains of errors.

use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;

use mpienv::collective::{ConnectError, Group};
use mpienv_sharding::plan::Collectives;
use mpienv_trainer::checkpoint::{Checkpoints, Run, Settings};
use mpienv_trainer::cli::Cuts;
use mpienv_trainer::data::digits;
use mpienv_trainer::data::source::Source;
use mpienv_trainer::model::Architecture;
use mpienv_trainer::train::TrainError;
use mpienv_trainer::weights;

use crate::support::curve;

/// The texts of an error and its sources.
fn chain(error: &dyn Error) -> Vec<String> {
    let sources = error.source().map(chain).unwrap_or_default();
    std::iter::once(error.to_string()).chain(sources).collect()
}

#[test]
fn no_error_repeats_the_text_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, [b'{'; 100]).unwrap();
    let cuts = Cuts {
        strategies: vec!["other=((1,1),(1,1))".parse().unwrap()],
        collectives: Collectives::Compat,
    };
    let shapes = Architecture::Linear.model(1).parameter_shapes();
    let run = Run::new(&curve::plan(1), shapes.clone(), 1, &digits::draw().train);
    let settings = Settings { folder: Some(file.join("below")), ..Settings::default() };
    let begun =
        Checkpoints::begin(&settings, run, &mut Vec::new(), &mut Group::alone(), &mut |_| {});
    let errors: [Box<dyn Error>; 7] = [
        Box::new(TrainError::from(io::Error::from(io::ErrorKind::StorageFull))),
        Box::new(ConnectError::Socket(io::ErrorKind::AddrInUse.into())),
        Box::new(begun.unwrap_err()),
        Box::new(weights::read(&file, &shapes).unwrap_err()),
        Box::new(weights::read(Path::new("/no/such/file"), &shapes).unwrap_err()),
        Box::new(Source::Folder("/no/such/folder".into()).load().unwrap_err()),
        Box::new(cuts.plan(Architecture::Linear, 0.1, 1, 1).unwrap_err()),
    ];
    for error in errors {
        let texts = chain(error.as_ref());
        for (index, text) in texts.iter().enumerate() {
            assert!(!texts[..index].iter().any(|before| before.contains(text)), "{texts:#?}");
        }
    }
}
