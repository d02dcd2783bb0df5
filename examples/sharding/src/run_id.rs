//! Identifies a run, so that parts of different runs are not merged.

use std::fmt;

use super::plan::Plan;
use crate::file::digest::PartsDigest;
use serde::{Deserialize, Serialize};

/// The number of digits of a digest to print.
const SHOWN: usize = 8;

/// Digests of a run's plan and of how its initial parameters came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunId {
    plan: String,
    start: String,
}

impl RunId {
    /// Identifies a run of `plan` with initial parameters drawn by `drawn`, such as an
    /// [`Init`](super::init::Init).
    pub fn new(plan: &Plan, drawn: &impl fmt::Debug) -> RunId {
        RunId { plan: of_plan(plan), start: digest(&[&format!("{drawn:?}")]) }
    }

    /// Identifies the run that resumes with `plan` after `steps` steps. It is the same run if the
    /// plan is the same.
    pub fn resumed(&self, plan: &Plan, steps: u64) -> RunId {
        let next = of_plan(plan);
        if next == self.plan {
            return self.clone();
        }
        RunId { plan: next, start: digest(&[&self.plan, &self.start, &steps.to_string()]) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunId { plan, start } = self;
        write!(f, "plan {plan:.SHOWN$}, start {start:.SHOWN$}")
    }
}

fn of_plan(plan: &Plan) -> String {
    digest(&[&plan.graph(), &plan.instructions_of(0)])
}

fn digest(texts: &[&str]) -> String {
    let mut sha = PartsDigest::default();
    texts.iter().for_each(|text| sha.add(text));
    sha.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::Init;
    use crate::network::Chain;
    use crate::plan::{Collectives, Terms};

    fn plan(learning_rate: f64, collectives: Collectives) -> Plan {
        let network = Chain::new(8, 8).matmul("matmul", "w", 8).mse("loss");
        Plan::new(
            &network,
            &Terms { world: 2, data_cut: 2, collectives, learning_rate, momentum: 0.1 },
        )
        .unwrap()
    }

    #[test]
    fn runs_differ_in_plan_first_weights_and_what_they_go_on_from() {
        let (one, other) = (plan(0.1, Collectives::Compat), plan(0.2, Collectives::Compat));
        let seed = |seed| Init::Normal { seed };
        let first = RunId::new(&one, &seed(1));
        assert_eq!(first, RunId::new(&plan(0.1, Collectives::Compat), &seed(1)));
        let all = [
            first.clone(),
            RunId::new(&one, &seed(2)),
            RunId::new(&one, &Init::MindSpore1),
            RunId::new(&other, &seed(1)),
            RunId::new(&plan(0.1, Collectives::Min), &seed(1)),
            first.resumed(&other, 4),
            first.resumed(&other, 5),
            RunId::new(&one, &seed(2)).resumed(&other, 4),
            first.resumed(&other, 4).resumed(&one, 8),
        ];
        for (index, run_id) in all.iter().enumerate() {
            assert!(!all[..index].contains(run_id), "{index}");
        }
    }

    #[test]
    fn a_run_that_goes_on_by_its_plan_is_the_same_run() {
        let plan = plan(0.1, Collectives::Compat);
        let first = RunId::new(&plan, &Init::Normal { seed: 1 });
        assert_eq!(first.resumed(&plan, 4), first);
        let text = first.to_string();
        assert_eq!(text.len(), "plan 01234567, start 01234567".len(), "{text}");
    }
}
