//! A strategy with the name of its operator, as written on the command line.

use std::fmt;
use std::str::FromStr;

use super::network::{Network, UnknownOperator};
use super::strategy::{Strategy, StrategyTextError};

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
    pub fn apply(all: &[Assignment], network: &mut Network) -> Result<(), UnknownOperator> {
        all.iter().try_for_each(|Assignment { operator, strategy }| {
            network.shard(operator, strategy.clone())
        })
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
