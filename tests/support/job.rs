//! Whole jobs as Open MPI would start them: every rank's environment.

use proptest::prelude::*;

/// One rank's variables.
pub type Vars = Vec<(String, String)>;

/// A job: which ranks are on which node, and their local ranks.
#[derive(Clone, Debug)]
pub struct Job {
    /// For each rank its node and its local rank.
    pub places: Vec<(usize, u32)>,
    /// How many ranks each node has.
    pub counts: Vec<u32>,
}

impl Job {
    /// The variables that every version of Open MPI sets for a rank.
    pub fn vars(&self, rank: usize) -> Vars {
        let (node, local_rank) = self.places[rank];
        [
            ("OMPI_COMM_WORLD_RANK", rank as u32),
            ("OMPI_COMM_WORLD_SIZE", self.places.len() as u32),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local_rank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", self.counts[node]),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .to_vec()
    }

    /// The variables of all ranks, with `more` added to each.
    pub fn all(&self, more: &[(&str, &str)]) -> Vec<Vars> {
        let more: Vars = more.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        (0..self.places.len()).map(|rank| [self.vars(rank), more.clone()].concat()).collect()
    }
}

/// Any consistent layout: uneven nodes, ranks dealt by slot or by node, local ranks in any order.
pub fn job() -> impl Strategy<Value = Job> {
    let counts = prop::collection::vec(1u32..6, 1..5);
    (counts, any::<bool>(), any::<u64>()).prop_map(|(counts, by_node, seed)| {
        let mut nodes: Vec<usize> = Vec::new();
        if by_node {
            let rounds = counts.iter().copied().max().unwrap_or_default();
            for round in 0..rounds {
                nodes.extend((0..counts.len()).filter(|&node| round < counts[node]));
            }
        } else {
            for (node, &count) in counts.iter().enumerate() {
                nodes.extend(std::iter::repeat_n(node, count as usize));
            }
        }
        let mut next = vec![0u32; counts.len()];
        let places = nodes.iter().map(|&node| {
            let index = next[node];
            next[node] += 1;
            // A rotation is a permutation: local ranks need not follow the ranks.
            (node, (index + (seed % 7) as u32) % counts[node])
        });
        Job { places: places.collect(), counts }
    })
}
