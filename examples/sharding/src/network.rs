//! Networks: chains of operators that end in a loss.

use super::operator::Operator;
use super::strategy::Strategy;
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
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
}

impl Network {
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The parameters in the order in which they are used.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Sets the strategy of an operator.
    pub fn shard(&mut self, name: &str, strategy: Strategy) -> Result<(), UnknownOperator> {
        match self.nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.strategy = Some(strategy),
            None => {
                let names = join(self.nodes.iter().map(|node| &node.name), ", ");
                return Err(UnknownOperator { name: name.to_owned(), names });
            }
        }
        Ok(())
    }
}

/// The network has no operator of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operator {name}: the network has {names}")]
pub struct UnknownOperator {
    name: String,
    names: String,
}

/// A network that does not have its loss yet.
#[derive(Clone, Debug)]
pub struct Chain {
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    shape: Vec<usize>,
}

impl Chain {
    /// Starts a chain with `rows` samples on all ranks together, of `columns` numbers each. Both
    /// must be at least 1.
    pub fn new(rows: usize, columns: usize) -> Chain {
        Chain { nodes: Vec::new(), parameters: Vec::new(), shape: vec![rows, columns] }
    }

    /// Appends a product with a parameter of `columns` columns; at least 1.
    pub fn matmul(self, name: &str, parameter: &str, columns: usize) -> Chain {
        let shape = vec![self.shape[1], columns];
        self.with(name, Operator::MatMul, Some((parameter, shape)))
    }

    /// Appends an operator that adds a row of parameters to each row.
    pub fn bias_add(self, name: &str, parameter: &str) -> Chain {
        let shape = vec![self.shape[1]];
        self.with(name, Operator::BiasAdd, Some((parameter, shape)))
    }

    /// Appends an operator that replaces numbers below 0 with 0.
    pub fn relu(self, name: &str) -> Chain {
        self.with(name, Operator::Relu, None)
    }

    /// Ends the chain in the mean squared difference from labels of the same shape.
    pub fn mse(self, name: &str) -> Network {
        let labels = self.shape.clone();
        self.ending(name, Operator::Mse, labels)
    }

    /// Ends the chain in the mean softmax cross-entropy. The labels are class numbers, one per
    /// sample.
    pub fn xent(self, name: &str) -> Network {
        let labels = vec![self.shape[0]];
        self.ending(name, Operator::Xent, labels)
    }

    fn with(
        mut self,
        name: &str,
        operator: Operator,
        parameter: Option<(&str, Vec<usize>)>,
    ) -> Chain {
        let mut shapes = vec![self.shape];
        let number = parameter.as_ref().map(|_| self.parameters.len());
        if let Some((name, shape)) = parameter {
            shapes.push(shape.clone());
            self.parameters.push(Parameter { name: name.to_owned(), shape });
        }
        let node =
            Node { name: name.to_owned(), operator, shapes, parameter: number, strategy: None };
        self.shape = node.output();
        self.nodes.push(node);
        self
    }

    fn ending(mut self, name: &str, operator: Operator, labels: Vec<usize>) -> Network {
        let shapes = vec![self.shape, labels];
        self.nodes.push(Node {
            name: name.to_owned(),
            operator,
            shapes,
            parameter: None,
            strategy: None,
        });
        Network { nodes: self.nodes, parameters: self.parameters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_from_the_chain() {
        let network =
            Chain::new(6, 4).matmul("a", "w", 8).bias_add("b", "v").relu("c").xent("loss");
        let shapes: Vec<_> = network.nodes().iter().map(|node| node.shapes.clone()).collect();
        let six = vec![6, 8];
        let expected = [
            vec![vec![6, 4], vec![4, 8]],
            vec![six.clone(), vec![8]],
            vec![six.clone()],
            vec![six.clone(), vec![6]],
        ];
        assert_eq!(shapes, expected);
        assert_eq!(network.parameters()[1], Parameter { name: "v".to_owned(), shape: vec![8] });
    }

    #[test]
    fn an_operator_that_is_not_there_is_named() {
        let mut network = Chain::new(6, 4).relu("a").mse("loss");
        let error = network.shard("b", Strategy(vec![])).unwrap_err().to_string();
        assert_eq!(error, "there is no operator b: the network has a, loss");
    }
}
