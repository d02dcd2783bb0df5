//! A strategy and the operator that it is for, as command lines give them.

use std::fmt;
use std::str::FromStr;

use super::network::{Network, UnknownOperator};
use super::strategy::{Strategy, StrategyTextError};

/// The operator that a strategy without a name is for: the first product of every network here.
pub const FIRST: &str = "matmul";

/// How one operator of a network is to be cut: `matmul2=((2,4),(4,1))`; without a name it is for [`FIRST`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The operator's name.
    pub operator: String,
    /// How it is to be cut.
    pub strategy: Strategy,
}

impl Assignment {
    /// Tells the network how its operators are to be cut; of two for one operator the later counts.
    pub fn apply(all: &[Assignment], network: &mut Network) -> Result<(), UnknownOperator> {
        all.iter().try_for_each(|Assignment { operator, strategy }| network.shard(operator, strategy.clone()))
    }
}

impl FromStr for Assignment {
    type Err = StrategyTextError;

    fn from_str(text: &str) -> Result<Assignment, StrategyTextError> {
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

    #[test]
    fn a_strategy_is_for_the_first_product_or_for_the_operator_named() {
        let read = |text: &str| text.parse::<Assignment>().map(|assignment| assignment.to_string());
        assert_eq!(read("((2,4),(4,1))").as_deref(), Ok("matmul=((2,4),(4,1))"));
        assert_eq!(read(" relu = ((8,1))").as_deref(), Ok("relu=((8,1),)"));
        assert!(read("relu=(8,1)").is_err());
    }
}
