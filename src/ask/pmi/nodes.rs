//! The nodes of all ranks, as `PMI_process_mapping` lists them: `(vector,(0,2,4))`.
//!
//! Each group has the first node, the number of nodes, and how many ranks each of them gets. If
//! ranks remain, the groups start over.

use std::collections::HashMap;

use mpienv_core::seam::{Answer, Server, digits};

/// A job with more ranks has no nodes here, so that no answer makes mpienv count for long.
const MOST_RANKS: u32 = 1 << 24;

/// Nodes that come one after the other, with the same number of ranks on each: the first node, the
/// number of nodes and the number of ranks.
type Group = [u32; 3];

/// Determines the place of a rank. `None` if the text does not show it: versions of launchers write
/// new forms, and rank 0's host can be asked for without the nodes.
pub(super) fn place(rank: u32, size: u32, text: &str) -> Option<Answer> {
    let mut groups = groups(text)?;
    groups.retain(|&[_, nodes, ranks]| nodes > 0 && ranks > 0);
    if size > MOST_RANKS || groups.is_empty() {
        return None;
    }
    // The number of each node, and how many ranks it has.
    let mut numbers: HashMap<u32, usize> = HashMap::new();
    let mut sizes: Vec<u32> = Vec::new();
    let mut own = None;
    let mut next = 0;
    let nodes_of =
        |&[first, nodes, ranks]: &Group| (0..nodes).map(move |node| (first, node, ranks));
    for (first, node, ranks) in groups.iter().cycle().flat_map(nodes_of) {
        if next == size {
            break;
        }
        let number = *numbers.entry(first.checked_add(node)?).or_insert(sizes.len());
        if number == sizes.len() {
            sizes.push(0);
        }
        let here = ranks.min(size - next);
        if (next..next + here).contains(&rank) {
            own = Some((number, sizes[number] + rank - next));
        }
        sizes[number] += here;
        next += here;
    }
    let (number, local_rank) = own?;
    Some(Answer {
        // In the order in which ranks first use the nodes: rank 0's node is 0.
        node_rank: Some(u32::try_from(number).ok()?),
        node_count: Some(u32::try_from(sizes.len()).ok()?),
        local_rank: Some(local_rank),
        local_size: Some(sizes[number]),
        ..Answer::of(Server::Pmi)
    })
}

/// Parses `(vector,(0,2,4),...)`. MPICH 5 writes groups that repeat as `[(0,2,4),...]xN`.
fn groups(text: &str) -> Option<Vec<Group>> {
    let mut rest = text.strip_prefix("(vector")?.strip_suffix(')')?;
    let mut groups = Vec::new();
    while !rest.is_empty() {
        rest = rest.strip_prefix(',')?;
        let Some(repeated) = rest.strip_prefix('[') else {
            let (inside, later) = rest.strip_prefix('(')?.split_once(')')?;
            groups.push(numbers(inside)?);
            rest = later;
            continue;
        };
        let (inner, after) = repeated.split_once("]x")?;
        let end = after.find(',').unwrap_or(after.len());
        let inner = inner.strip_prefix('(')?.strip_suffix(')')?.split("),(");
        let once = inner.map(numbers).collect::<Option<Vec<Group>>>()?;
        let times = usize::try_from(digits::<u32>(&after[..end])?).ok()?;
        if times.checked_mul(once.len())?.checked_add(groups.len())? > MOST_RANKS as usize {
            return None;
        }
        groups.extend((0..times).flat_map(|_| once.iter().copied()));
        rest = &after[end..];
    }
    Some(groups)
}

/// Reads the three numbers of a group.
fn numbers(text: &str) -> Option<Group> {
    text.split(',').map(digits).collect::<Option<Vec<u32>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(size: u32, text: &str) -> Vec<[u32; 4]> {
        let place_of = |rank| {
            let place = place(rank, size, text).unwrap();
            [place.node_rank, place.node_count, place.local_rank, place.local_size]
                .map(Option::unwrap)
        };
        (0..size).map(place_of).collect()
    }

    #[test]
    fn every_rank_finds_its_node() {
        let block = [[0, 2, 0, 2], [0, 2, 1, 2], [1, 2, 0, 2], [1, 2, 1, 2]];
        assert_eq!(places(4, "(vector,(0,2,2))"), block);
        let uneven = [[0, 2, 0, 3], [0, 2, 1, 3], [0, 2, 2, 3], [1, 2, 0, 1]];
        assert_eq!(places(4, "(vector,(0,1,3),(1,1,1))"), uneven);
        // The groups start over.
        let by_node = [[0, 2, 0, 2], [1, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2]];
        assert_eq!(places(4, "(vector,(0,2,1))"), by_node);
        assert_eq!(places(4, "(vector,[(0,2,1)]x2)"), by_node);
        assert_eq!(places(4, "(vector,[(0,1,1),(1,1,1)]x2)"), by_node);
        assert_eq!(places(4, "(vector,[(0,1,2)]x1,(1,1,2))"), block);
        // Rank 0's node is the first, whatever the launcher calls it.
        let second_first = [[0, 2, 0, 1], [1, 2, 0, 1]];
        assert_eq!(places(2, "(vector,(1,1,1),(0,1,1))"), second_first);
        assert_eq!(places(2, "(vector,(0,1,8))"), [[0, 1, 0, 2], [0, 1, 1, 2]]);
    }

    #[test]
    fn what_is_not_a_mapping_shows_no_nodes() {
        for bad in [
            "",
            "(vector",
            "vector,(0,1,1)",
            "(vector)",
            "(vector,(0,1))",
            "(vector,(0,1,1,1))",
            "(vector,(0,1,x))",
            "(vector,(0,+1,1))",
            "(vector,(0,1,4294967296))",
            "(vector,(0,1,1)(1,1,1))",
            "(vector,(0,0,1),(0,1,0))",
            "(vector,(4294967295,2,1))",
            "(dense,0,1)",
            "(vector,[(0,1,1))",
            "(vector,[]x2)",
            "(vector,[(0,1,1)]2)",
            "(vector,[(0,1,1)(0,1,1)]x2)",
            "(vector,[(0,1,1)]x4294967295)",
            "(vector,[(0,1,1)]x2(0,1,1))",
        ] {
            assert_eq!(place(0, 4, bad), None, "{bad}");
        }
        let all = u32::MAX;
        assert_eq!(place(0, all, "(vector,(0,1,1))"), None);
        // Each repetition is possible, and all together would fill the memory.
        let repeated = format!("(vector{})", ",[(0,1,1)]x16777216".repeat(1000));
        assert_eq!(place(0, 4, &repeated), None);
        let many = format!("(vector,(0,{all},{all}))");
        assert_eq!(place(1, 2, &many).unwrap().node_count, Some(1));
    }
}
