//! Checks that all ranks have the same configuration, data and parameters.

use crate::data::{CLASSES, Dataset, Datasets};
use crate::train::TrainConfig;
use mpienv::collective::{CollectiveError, Group};
use mpienv_sharding::error::{Error, Reach};
use mpienv_sharding::job::majority;
use mpienv_sharding::join;
use ring::digest::{SHA256, digest};
use serde::Serialize;
use serde_json::Value;

/// Values that must be the same on all ranks.
#[derive(Serialize)]
struct Terms<'a> {
    version: &'static str,
    model: &'a str,
    strategy: &'a str,
    #[serde(rename = "training set, labels 0 to 9")]
    train: [usize; CLASSES],
    #[serde(rename = "test set, labels 0 to 9")]
    test: [usize; CLASSES],
    config: &'a TrainConfig,
}

/// Names the strategy of a run without operator sharding.
pub const DATA_PARALLEL: &str = "data parallel";

/// Compares the model, strategy, configuration and label counts of all ranks.
pub fn check_config(
    model: &str,
    strategy: &str,
    config: &TrainConfig,
    data: &Datasets,
    group: &mut Group,
) -> Result<(), Error> {
    let version = env!("CARGO_PKG_VERSION");
    let [train, test] = [&data.train, &data.test].map(Dataset::class_counts);
    check(&Terms { version, model, strategy, train, test, config }, group)
}

/// Compares the devices that all ranks' options name. It depends on them what calls the ranks make.
pub fn check_device(device: &str, group: &mut Group) -> Result<(), Error> {
    check(&serde_json::json!({ "device": device }), group)
}

fn check(terms: &impl Serialize, group: &mut Group) -> Result<(), Error> {
    let own = serde_json::to_vec(terms).map_err(Error::input)?;
    let all = group.all_gather(&own)?;
    let other = all.iter().enumerate().find(|(_, other)| **other != all[0]);
    other.map_or(Ok(()), |(rank, other)| Err(difference(rank, other, &all[0])))
}

fn difference(rank: usize, found: &[u8], expected: &[u8]) -> Error {
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
    let text = |text: &str| mpienv::printable(text.as_bytes());
    Error::input(format!(
        "rank {rank} has {} {}, rank 0 has {}: all ranks must run the same program with the same \
         options and data",
        text(&term),
        text(&found.to_string()),
        text(&expected.to_string())
    ))
    .reaching(Reach::All)
}

/// Compares digests of all ranks' parameters. All ranks get the same result: the inner error says
/// which ranks differ from the majority.
pub fn check_replicas(
    parameters: &[f32],
    group: &mut Group,
) -> Result<Result<(), String>, CollectiveError> {
    if group.rank().size() == 1 {
        return Ok(Ok(()));
    }
    let digest = digest(&SHA256, bytemuck::cast_slice(parameters));
    let digests = group.all_gather(digest.as_ref())?;
    let held: Vec<(usize, &[u8])> = digests.iter().map(Vec::as_slice).enumerate().collect();
    Ok(compare(&held))
}

/// Compares the bytes that ranks hold, given in rank order. The error says which ranks differ from
/// the largest set of ranks that agree; of equally large sets, the one with the lowest rank.
pub fn compare(held: &[(usize, &[u8])]) -> Result<(), String> {
    let all: Vec<&[u8]> = held.iter().map(|&(_, bytes)| bytes).collect();
    let right = majority(&all);
    let (most, odd): (Vec<_>, Vec<_>) = held.iter().partition(|(_, bytes)| Some(bytes) == right);
    if odd.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} other parameters than {}: a sum had another result there, or memory is faulty; if it \
         happens again, exclude the host and resume from a checkpoint",
        ranks(&odd, "holds", "hold"),
        ranks(&most, "", "")
    ))
}

/// Formats `rank 3 holds` or `ranks 1, 2 hold`. A long list is abbreviated.
fn ranks(ranks: &[&(usize, &[u8])], one: &str, more: &str) -> String {
    const SHOWN: usize = 8;
    let list = join(ranks.iter().take(SHOWN).map(|(rank, _)| rank), ", ");
    let rest = ranks.len().saturating_sub(SHOWN);
    let list = if rest > 0 { format!("{list} and {rest} more") } else { list };
    let text = if ranks.len() == 1 {
        format!("rank {list} {one}")
    } else {
        format!("ranks {list} {more}")
    };
    text.trim_end().to_owned()
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
                check_config(
                    model,
                    strategy,
                    &TrainConfig { batch_size, ..CONFIG },
                    last_data,
                    rank,
                )
            } else {
                check_config("linear", DATA_PARALLEL, &CONFIG, &data, rank)
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

    fn verdict(digests: &[u8]) -> String {
        let held: Vec<(usize, &[u8])> = digests.chunks(1).enumerate().collect();
        compare(&held).map_or_else(|error| error.to_string(), |()| "same".to_owned())
    }

    #[test]
    fn the_odd_ranks_are_named_and_who_they_differ_from() {
        assert_eq!(verdict(&[7, 7, 7]), "same");
        for (digests, start) in [
            (&[7, 7, 5, 7][..], "rank 2 holds other parameters than ranks 0, 1, 3: "),
            (&[5, 7, 7], "rank 0 holds other parameters than ranks 1, 2: "),
            (&[1, 2, 7, 7, 7], "ranks 0, 1 hold other parameters than ranks 2, 3, 4: "),
            // Of two ranks, neither is known to be right.
            (&[7, 5], "rank 1 holds other parameters than rank 0: "),
            (&[5, 7], "rank 1 holds other parameters than rank 0: "),
            (
                &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                "rank 0 holds other parameters than ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more: ",
            ),
        ] {
            assert!(verdict(digests).starts_with(start), "{}", verdict(digests));
        }
    }
}
