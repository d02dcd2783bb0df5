//! Strategies, which specify how an operator's inputs are cut.

use super::network::{Network, Node};
use crate::error::Error;
use crate::join;
use std::fmt;
use std::str::FromStr;

/// The number of parts of each dimension of each input, such as `((2,4),(4,1))`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strategy(pub Vec<Vec<u32>>);

impl Strategy {
    /// Returns the cuts of each loop of an operator.
    ///
    /// # Errors
    /// If its inputs cannot be cut this way over `world` ranks.
    pub fn check(&self, node: &Node, world: u32) -> Result<Vec<u32>, Error> {
        let Node { name, operator, shapes, .. } = node;
        let refused = |fault: String| Err(Error::input(format!("{name}: strategy {self}{fault}")));
        let rule = operator.rule();
        if self.0.len() != shapes.len() {
            let (found, expected) = (self.0.len(), shapes.len());
            return refused(format!(" has {found} entries, the operator has {expected} inputs"));
        }
        for (entry, (cuts, shape)) in self.0.iter().zip(shapes).enumerate() {
            if cuts.len() != shape.len() {
                let (found, shape) = (cuts.len(), tuple(shape, false));
                return refused(format!(
                    ": entry {entry} has {found} dims, the input has shape {shape}"
                ));
            }
        }
        if self.0.iter().flatten().any(|&cut| cut == 0) {
            return refused(": value 0 must be larger than 0".to_owned());
        }
        for (input, (cuts, shape)) in self.0.iter().zip(shapes).enumerate() {
            for (dim, (&cut, &size)) in cuts.iter().zip(shape).enumerate() {
                if size % cut as usize != 0 {
                    let dim = format!("input {input} dim {dim} of size {size}");
                    return refused(format!(": {dim} cannot be divided by {cut}"));
                }
            }
        }
        // The name of the first dimension of each loop, and its cut.
        let mut known: Vec<Option<(String, u32)>> = vec![None; rule.loops];
        for (input, (cuts, loops)) in self.0.iter().zip(rule.inputs).enumerate() {
            for (dim, (&cut, &number)) in cuts.iter().zip(*loops).enumerate() {
                let dim = match (loops.len(), dim) {
                    (1, _) => "elements",
                    (_, 0) => "rows",
                    _ => "columns",
                };
                let dim = format!("{} input's {dim}", if input == 0 { "first" } else { "second" });
                match &known[number] {
                    Some((first, other)) if *other != cut => {
                        return refused(format!(": {first} are cut in {other}, {dim} in {cut}"));
                    }
                    Some(_) => {}
                    None => known[number] = Some((dim, cut)),
                }
            }
        }
        let cuts: Vec<u32> =
            known.into_iter().map(|known| known.map_or(1, |(_, cut)| cut)).collect();
        if rule.whole.is_some_and(|number| cuts[number] != 1) {
            return refused(": SoftmaxXent: the class dimension must not be cut".to_owned());
        }
        let needed =
            cuts.iter().fold(1, |product: u64, &cut| product.saturating_mul(u64::from(cut)));
        if !u64::from(world).is_multiple_of(needed) {
            let by = format!("{world} devices can not be divided by it");
            return refused(format!(" requires {needed} devices, but {by}"));
        }
        Ok(cuts)
    }
}

impl fmt::Display for Strategy {
    /// Writes `((2,4),(4,1))` or, with `{:#}`, `((2, 4), (4, 1))` as MindSpore does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.iter().map(|cuts| tuple(cuts, f.alternate()));
        f.write_str(&tuple(entries, f.alternate()))
    }
}

/// Formats a tuple as Python does.
pub(super) fn tuple<T: fmt::Display>(items: impl IntoIterator<Item = T>, spaced: bool) -> String {
    let items: Vec<T> = items.into_iter().collect();
    match items.as_slice() {
        [one] => format!("({one},)"),
        _ => format!("({})", join(items, if spaced { ", " } else { "," })),
    }
}

impl FromStr for Strategy {
    type Err = Error;

    /// Parses tuples as Python writes them. A single tuple needs no comma: `((2,4))` is `((2,4),)`.
    fn from_str(text: &str) -> Result<Strategy, Error> {
        let error = || {
            Error::input(format!(
                "\"{text}\" is not a strategy: a strategy has a tuple for each input, with the \
                 number of parts of each dimension, such as ((2,4),(4,1))"
            ))
        };
        // As JSON, which has other brackets, and no comma after the last item.
        let items = text.split(')').map(|items| items.trim_end());
        let items = items.map(|items| items.strip_suffix(',').unwrap_or(items));
        let json = join(items, "]").replace('(', "[");
        let entries: Vec<Vec<u32>> = serde_json::from_str(&json).map_err(|_| error())?;
        let is_empty = entries.is_empty() || entries.iter().any(Vec::is_empty);
        if is_empty || text.contains(['[', ']']) { Err(error()) } else { Ok(Strategy(entries)) }
    }
}

/// The operator for a strategy without a name: the first matrix product in each of these programs'
/// networks.
pub const FIRST: &str = "matmul";

/// An operator's strategy, such as `matmul2=((2,4),(4,1))`. Without a name, it applies to
/// [`FIRST`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub operator: String,
    pub strategy: Strategy,
}

impl Assignment {
    /// Sets the strategies of the network's operators. If an operator has several, the last one
    /// applies.
    pub fn apply(all: &[Assignment], network: &mut Network) -> Result<(), Error> {
        all.iter().try_for_each(|Assignment { operator, strategy }| {
            network.shard(operator, strategy.clone())
        })
    }
}

impl FromStr for Assignment {
    type Err = Error;

    fn from_str(text: &str) -> Result<Assignment, Error> {
        let (operator, strategy) = text.split_once('=').unwrap_or((FIRST, text));
        Ok(Assignment { operator: operator.trim().to_owned(), strategy: strategy.parse()? })
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.operator, self.strategy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Operator;

    fn parse(text: &str) -> Strategy {
        text.parse().unwrap()
    }

    #[test]
    fn a_strategy_is_read_and_printed() {
        for (text, printed) in [
            ("((2,4),(4,1))", "((2,4),(4,1))"),
            (" ( ( 2 , 4 ) , ( 4 , 1 ) ) ", "((2,4),(4,1))"),
            ("((2,4))", "((2,4),)"),
            ("((2,4),)", "((2,4),)"),
            ("((8, 1), (8,))", "((8,1),(8,))"),
            ("((8,1),(8))", "((8,1),(8,))"),
        ] {
            assert_eq!(parse(text).to_string(), printed);
            assert_eq!(parse(printed).to_string(), printed);
        }
        assert_eq!(format!("{:#}", parse("((2,4),(4,1))")), "((2, 4), (4, 1))");
        assert_eq!(format!("{:#}", parse("((2,4))")), "((2, 4),)");
    }

    #[test]
    fn what_is_not_a_strategy_is_refused() {
        for text in [
            "",
            "()",
            "(2,4)",
            "((2,4)",
            "((2,4)))",
            "((2,4)(4,1))",
            "((2,-4))",
            "((2,,4))",
            "(())",
            "((2,4),,)",
        ] {
            let error = text.parse::<Strategy>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is not a strategy: ")), "{error}");
        }
    }

    fn node(operator: Operator, shapes: &[&[usize]]) -> Node {
        let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
        Node { name: "op".to_owned(), operator, shapes, parameter: None, strategy: None }
    }

    #[track_caller]
    fn assert_refused(operator: Operator, shapes: &[&[usize]], text: &str, expected: &str) {
        let error = parse(text).check(&node(operator, shapes), 8).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn each_illegal_strategy_has_its_message() {
        let matmul = |text, expected| {
            assert_refused(Operator::MatMul, &[&[16, 32], &[32, 16]], text, expected)
        };
        matmul("((2,4))", "op: strategy ((2,4),) has 1 entries, the operator has 2 inputs");
        matmul(
            "((2,4,1),(4,1))",
            "op: strategy ((2,4,1),(4,1)): entry 0 has 3 dims, the input has shape (16,32)",
        );
        matmul("((0,4),(4,1))", "op: strategy ((0,4),(4,1)): value 0 must be larger than 0");
        matmul(
            "((3,4),(4,1))",
            "op: strategy ((3,4),(4,1)): input 0 dim 0 of size 16 cannot be divided by 3",
        );
        matmul(
            "((2,4),(2,1))",
            "op: strategy ((2,4),(2,1)): first input's columns are cut in 4, second input's rows in 2",
        );
        matmul(
            "((4,4),(4,1))",
            "op: strategy ((4,4),(4,1)) requires 16 devices, but 8 devices can not be divided by it",
        );
        assert_refused(
            Operator::Xent,
            &[&[16, 8], &[16]],
            "((4,2),(4,))",
            "op: strategy ((4,2),(4,)): SoftmaxXent: the class dimension must not be cut",
        );
        assert_refused(
            Operator::BiasAdd,
            &[&[16, 8], &[8]],
            "((2,4),(2,))",
            "op: strategy ((2,4),(2,)): first input's columns are cut in 4, second input's elements in 2",
        );
    }

    #[test]
    fn the_cuts_of_a_legal_strategy_are_those_of_the_loops() {
        let product = node(Operator::MatMul, &[&[16, 32], &[32, 16]]);
        let cuts = |text| parse(text).check(&product, 8).unwrap();
        assert_eq!(cuts("((2,4),(4,1))"), [2, 4, 1]);
        assert_eq!(cuts("((1,1),(1,2))"), [1, 1, 2]);
    }

    #[test]
    fn a_strategy_is_for_the_first_product_or_for_the_operator_named() {
        let read = |text: &str| text.parse::<Assignment>().map(|assignment| assignment.to_string());
        assert_eq!(read("((2,4),(4,1))").as_deref(), Ok("matmul=((2,4),(4,1))"));
        assert_eq!(read(" relu = ((8,1))").as_deref(), Ok("relu=((8,1),)"));
        assert!(read("relu=(8,1)").is_err());
    }
}
