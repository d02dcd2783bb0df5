//! Networks: chains of operators that end in a loss.

use super::operator::Operator;
use super::strategy::Strategy;
use crate::error::Error;
use crate::join;

/// An operator of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub operator: Operator,
    /// The shapes of the inputs. The first input is the result of the previous operator.
    pub shapes: Vec<Vec<usize>>,
    /// The number of the parameter, if the second input is a parameter.
    pub parameter: Option<usize>,
    /// The strategy. Without one, the operator is cut to fit its neighbors.
    pub strategy: Option<Strategy>,
}

impl Node {
    /// The shape of the result.
    pub fn output(&self) -> Vec<usize> {
        match self.operator {
            Operator::MatMul => vec![self.shapes[0][0], self.shapes[1][1]],
            Operator::BiasAdd | Operator::Relu => self.shapes[0].clone(),
            Operator::Mse | Operator::Xent => Vec::new(),
        }
    }
}

/// A parameter and its whole shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<usize>,
}

/// A chain of operators. The last is the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub nodes: Vec<Node>,
    /// The parameters in the order in which they are used.
    pub parameters: Vec<Parameter>,
}

impl Network {
    /// Sets the strategy of an operator.
    pub fn shard(&mut self, name: &str, strategy: Strategy) -> Result<(), Error> {
        let Some(node) = self.nodes.iter_mut().find(|node| node.name == name) else {
            let names = join(self.nodes.iter().map(|node| &node.name), ", ");
            let text = format!("there is no operator {name}: the network has {names}");
            return Err(Error::input(text));
        };
        node.strategy = Some(strategy);
        Ok(())
    }
}

/// A network that does not have its loss yet.
#[derive(Clone, Debug)]
pub struct Chain {
    network: Network,
    /// The shape of the last result.
    shape: Vec<usize>,
}

impl Chain {
    /// Starts a chain with `rows` samples on all ranks together, of `columns` numbers each. Both
    /// must be at least 1.
    pub fn new(rows: usize, columns: usize) -> Chain {
        let network = Network { nodes: Vec::new(), parameters: Vec::new() };
        Chain { network, shape: vec![rows, columns] }
    }

    /// Appends a product with a parameter of `columns` columns; at least 1.
    pub fn matmul(self, name: &str, parameter: &str, columns: usize) -> Chain {
        let shape = vec![self.shape[1], columns];
        self.with(name, Operator::MatMul, Some(parameter), Some(shape))
    }

    /// Appends an operator that adds a row of parameters to each row.
    pub fn bias_add(self, name: &str, parameter: &str) -> Chain {
        let shape = vec![self.shape[1]];
        self.with(name, Operator::BiasAdd, Some(parameter), Some(shape))
    }

    /// Appends an operator that replaces numbers below 0 with 0.
    pub fn relu(self, name: &str) -> Chain {
        self.with(name, Operator::Relu, None, None)
    }

    /// Ends the chain in the mean squared difference from labels of the same shape.
    pub fn mse(self, name: &str) -> Network {
        let labels = self.shape.clone();
        self.with(name, Operator::Mse, None, Some(labels)).network
    }

    /// Ends the chain in the mean softmax cross-entropy. The labels are class numbers, one per
    /// sample.
    pub fn xent(self, name: &str) -> Network {
        let labels = vec![self.shape[0]];
        self.with(name, Operator::Xent, None, Some(labels)).network
    }

    /// Appends an operator. Its second input, if any, is a new parameter or the labels.
    fn with(
        mut self,
        name: &str,
        operator: Operator,
        parameter: Option<&str>,
        second: Option<Vec<usize>>,
    ) -> Chain {
        let Network { nodes, parameters } = &mut self.network;
        let number = parameters.len();
        let new = parameter.map(str::to_owned).zip(second.clone());
        parameters.extend(new.map(|(name, shape)| Parameter { name, shape }));
        let (name, shapes) = (name.to_owned(), [self.shape].into_iter().chain(second).collect());
        let parameter = parameter.map(|_| number);
        let node = Node { name, operator, shapes, parameter, strategy: None };
        self.shape = node.output();
        nodes.push(node);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_from_the_chain() {
        let network =
            Chain::new(6, 4).matmul("a", "w", 8).bias_add("b", "v").relu("c").xent("loss");
        let shapes: Vec<_> = network.nodes.iter().map(|node| node.shapes.clone()).collect();
        let six = vec![6, 8];
        let expected = [
            vec![vec![6, 4], vec![4, 8]],
            vec![six.clone(), vec![8]],
            vec![six.clone()],
            vec![six.clone(), vec![6]],
        ];
        assert_eq!(shapes, expected);
        assert_eq!(network.parameters[1], Parameter { name: "v".to_owned(), shape: vec![8] });
    }

    #[test]
    fn an_operator_that_is_not_there_is_named() {
        let mut network = Chain::new(6, 4).relu("a").mse("loss");
        let error = network.shard("b", Strategy(vec![])).unwrap_err().to_string();
        assert_eq!(error, "there is no operator b: the network has a, loss");
    }
}
