//! Checks that all ranks have the same configuration and data.

use serde::Serialize;
use serde_json::Value;

use crate::data::{CLASSES, Datasets};
use crate::train::{TrainConfig, TrainError};
use mpienv::collective::Group;

/// Values that must be the same on all ranks.
#[derive(Serialize)]
struct Terms<'a> {
    version: &'static str,
    model: &'static str,
    strategy: &'a str,
    #[serde(rename = "training set, labels 0 to 9")]
    train: [usize; CLASSES],
    #[serde(rename = "test set, labels 0 to 9")]
    test: [usize; CLASSES],
    config: &'a TrainConfig,
}

/// Names the strategy of a run without operator sharding.
pub const DATA_PARALLEL: &str = "data parallel";

/// A rank's configuration or data differs from rank 0's.
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

/// Compares the model, strategy, configuration and label counts of all ranks.
pub fn check(
    model: &'static str,
    strategy: &str,
    config: &TrainConfig,
    data: &Datasets,
    group: &mut Group,
) -> Result<(), TrainError> {
    let version = env!("CARGO_PKG_VERSION");
    let terms = Terms {
        version,
        model,
        strategy,
        train: data.train.class_counts(),
        test: data.test.class_counts(),
        config,
    };
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
    // Descend to the smallest part that differs.
    while let (Value::Object(a), Value::Object(b)) = (found, expected) {
        let Some((name, a, b)) =
            b.iter().find_map(|(name, b)| Some((name, a.get(name)?, b)).filter(|(_, a, b)| a != b))
        else {
            break;
        };
        (term, found, expected) = (name.clone(), a, b);
    }
    let text = |text: String| mpienv::printable(text.as_bytes());
    Disagreement {
        rank,
        term: text(term),
        found: text(found.to_string()),
        expected: text(expected.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Order;
    use crate::data::digits;
    use mpienv::collective::threads;
    use std::time::Duration;

    const CONFIG: TrainConfig =
        TrainConfig { epochs: 1, batch_size: 32, learning_rate: 0.01, seed: 1, order: Order::File };

    /// Returns every rank's error if the last rank has another model, strategy, batch size or data
    /// set.
    fn errors(
        ranks: u32,
        model: &'static str,
        strategy: &str,
        batch_size: usize,
        last_data: &Datasets,
    ) -> Vec<String> {
        let data = digits::draw();
        let errors = threads::run(ranks, Duration::from_secs(1200), |rank| {
            let found = if rank.rank().index() + 1 == ranks {
                check(model, strategy, &TrainConfig { batch_size, ..CONFIG }, last_data, rank)
            } else {
                check("linear", DATA_PARALLEL, &CONFIG, &data, rank)
            };
            found.unwrap_err().to_string()
        });
        errors.unwrap()
    }

    #[test]
    fn a_rank_that_differs_is_named_with_what_differs() {
        let data = digits::draw();
        let text = "rank 2 has batch_size 64, rank 0 has 32: all ranks must run the same program with the same options and data";
        assert_eq!(errors(3, "linear", DATA_PARALLEL, 64, &data), [text; 3]);
        let other = Datasets { train: data.train.clone(), test: data.train.clone() };
        for (errors, start) in [
            (
                errors(2, "mlp", DATA_PARALLEL, 32, &data),
                "rank 1 has model \"mlp\", rank 0 has \"linear\": ",
            ),
            (
                errors(2, "linear", "matmul ((2,1),(1,1))", 32, &data),
                "rank 1 has strategy \"matmul ((2,1),(1,1))\", rank 0 has \"data parallel\": ",
            ),
            (
                errors(2, "linear", DATA_PARALLEL, 32, &other),
                "rank 1 has test set, labels 0 to 9 [1200,1200,",
            ),
        ] {
            assert!(errors[0].starts_with(start), "{}", errors[0]);
        }
    }
}
