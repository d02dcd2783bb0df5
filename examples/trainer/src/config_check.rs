//! Checks that all ranks have the same configuration and data.

use serde::Serialize;
use serde_json::Value;

use crate::data::{CLASSES, Datasets};
use crate::train::{TrainConfig, TrainError};
use mpienv::collective::Group;

/// What all ranks must have in common.
#[derive(Serialize)]
struct Terms<'a> {
    version: &'static str,
    model: &'static str,
    strategy: &'a str,
    #[serde(rename = "training set, labels 0 to 9")]
    train: [usize; CLASSES],
    #[serde(rename = "test set, labels 0 to 9")]
    test: [usize; CLASSES],
    plan: &'a TrainConfig,
}

/// The strategy of a run without operator sharding.
pub const DATA_PARALLEL: &str = "data parallel";

/// A rank's configuration or data differ from those of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} has {term} {found}, rank 0 has {expected}: all ranks must run the same program with the same options and data"
)]
pub struct Disagreement {
    /// The first rank that differs.
    pub rank: usize,
    /// The option or data set.
    pub term: String,
    pub found: String,
    /// The value of rank 0.
    pub expected: String,
}

/// Compares the model, its strategy, the configuration and the data of all ranks.
///
/// # Errors
/// If a rank differs or the ranks cannot exchange.
pub fn check(
    model: &'static str,
    strategy: &str,
    plan: &TrainConfig,
    data: &Datasets,
    group: &mut Group,
) -> Result<(), TrainError> {
    let version = env!("CARGO_PKG_VERSION");
    let terms =
        Terms { version, model, strategy, train: data.train.class_counts(), test: data.test.class_counts(), plan };
    let own = serde_json::to_vec(&terms).map_err(std::io::Error::from)?;
    let all = group.all_gather(&own)?;
    let Some(first) = all.first() else {
        return Ok(());
    };
    match all.iter().enumerate().find(|(_, other)| *other != first) {
        Some((rank, other)) => Err(difference(rank, other, first).into()),
        None => Ok(()),
    }
}

fn difference(rank: usize, found: &[u8], expected: &[u8]) -> Disagreement {
    let parse = |bytes| serde_json::from_slice(bytes).unwrap_or(Value::Null);
    let (found, expected) = (parse(found), parse(expected));
    let (mut term, mut found, mut expected) = ("terms".to_owned(), &found, &expected);
    // Down to the smallest part that differs.
    while let (Value::Object(a), Value::Object(b)) = (found, expected) {
        let Some((name, a, b)) =
            b.iter().find_map(|(name, b)| Some((name, a.get(name)?, b)).filter(|(_, a, b)| a != b))
        else {
            break;
        };
        (term, found, expected) = (name.clone(), a, b);
    }
    let text = |text: String| mpienv::printable(text.as_bytes());
    Disagreement { rank, term: text(term), found: text(found.to_string()), expected: text(expected.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;
    use crate::sampler::Order;
    use mpienv::collective::threads;
    use std::time::Duration;

    const PLAN: TrainConfig =
        TrainConfig { epochs: 1, batch_size: 32, learning_rate: 0.01, seed: 1, order: Order::File };

    #[test]
    fn a_rank_with_another_option_is_named() {
        let data = digits::draw();
        let errors = threads::run(3, Duration::from_secs(10), |rank| {
            let batch_size = if rank.rank().index() == 2 { 64 } else { 32 };
            check("linear", DATA_PARALLEL, &TrainConfig { batch_size, ..PLAN }, &data, rank).unwrap_err().to_string()
        })
        .unwrap();
        let expected = "rank 2 has batch_size 64, rank 0 has 32: all ranks must run the same program with the same options and data";
        assert_eq!(errors, [expected; 3]);
    }

    #[test]
    fn a_rank_with_another_model_is_named() {
        let data = digits::draw();
        let errors = threads::run(2, Duration::from_secs(10), |rank| {
            let model = if rank.rank().index() == 1 { "mlp" } else { "linear" };
            check(model, DATA_PARALLEL, &PLAN, &data, rank).unwrap_err().to_string()
        })
        .unwrap();
        assert!(errors[0].starts_with("rank 1 has model \"mlp\", rank 0 has \"linear\": "), "{}", errors[0]);
    }

    #[test]
    fn a_rank_with_another_strategy_is_named() {
        let data = digits::draw();
        let errors = threads::run(2, Duration::from_secs(10), |rank| {
            let strategy = if rank.rank().index() == 1 { "matmul ((2,1),(1,1))" } else { DATA_PARALLEL };
            check("linear", strategy, &PLAN, &data, rank).unwrap_err().to_string()
        })
        .unwrap();
        let start = "rank 1 has strategy \"matmul ((2,1),(1,1))\", rank 0 has \"data parallel\": ";
        assert!(errors[0].starts_with(start), "{}", errors[0]);
    }

    #[test]
    fn a_rank_with_other_data_is_named() {
        let data = digits::draw();
        let other = Datasets { train: data.train.clone(), test: data.train.clone() };
        let errors = threads::run(2, Duration::from_secs(10), |rank| {
            let data = if rank.rank().index() == 1 { &other } else { &data };
            check("linear", DATA_PARALLEL, &PLAN, data, rank).unwrap_err().to_string()
        })
        .unwrap();
        assert!(errors[0].starts_with("rank 1 has test set, labels 0 to 9 [1200,1200,"), "{}", errors[0]);
    }
}
