//! What is trained: a chain of operators that ends in a loss.

use super::operator::Operator;
use super::strategy::Strategy;
use crate::list::join;

/// One operator of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, for strategies, errors and texts.
    pub name: String,
    /// What it computes.
    pub operator: Operator,
    /// The shapes of its inputs: first the value from the operator before.
    pub shapes: Vec<Vec<usize>>,
    /// The number of its parameter, if it has one: that is its second input.
    pub parameter: Option<usize>,
    /// How it is to be cut; without one it is cut to fit its neighbours.
    pub strategy: Option<Strategy>,
}

impl Node {
    /// The shape of its result.
    pub fn output(&self) -> Vec<usize> {
        match self.operator {
            Operator::MatMul => vec![self.shapes[0][0], self.shapes[1][1]],
            Operator::BiasAdd | Operator::Relu => self.shapes[0].clone(),
            Operator::Mse | Operator::Xent => Vec::new(),
        }
    }
}

/// Something that is learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
}

/// Operators one after another, the loss at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
}

impl Network {
    /// The operators in order; the last is the loss.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What is learnt, in the order in which it is used.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Says how an operator is to be cut.
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

/// There is no operator of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operator {name}: the network has {names}")]
pub struct UnknownOperator {
    name: String,
    names: String,
}

/// A network that has no loss yet.
#[derive(Clone, Debug)]
pub struct Chain {
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    shape: Vec<usize>,
}

impl Chain {
    /// Begins with the samples of a step, of all ranks together: `rows` samples of `columns` numbers; both at least 1.
    pub fn new(rows: usize, columns: usize) -> Chain {
        Chain { nodes: Vec::new(), parameters: Vec::new(), shape: vec![rows, columns] }
    }

    /// The product with a parameter of `columns` columns, at least 1.
    pub fn matmul(self, name: &str, parameter: &str, columns: usize) -> Chain {
        let shape = vec![self.shape[1], columns];
        self.with(name, Operator::MatMul, Some((parameter, shape)))
    }

    /// A row of parameters added to each row.
    pub fn bias_add(self, name: &str, parameter: &str) -> Chain {
        let shape = vec![self.shape[1]];
        self.with(name, Operator::BiasAdd, Some((parameter, shape)))
    }

    /// Everything below 0 becomes 0.
    pub fn relu(self, name: &str) -> Chain {
        self.with(name, Operator::Relu, None)
    }

    /// Ends in the mean of the squared differences to labels of the same shape.
    pub fn mse(self, name: &str) -> Network {
        let labels = self.shape.clone();
        self.ending(name, Operator::Mse, labels)
    }

    /// Ends in the mean cross-entropy of softmax against the number of each sample's class.
    pub fn xent(self, name: &str) -> Network {
        let labels = vec![self.shape[0]];
        self.ending(name, Operator::Xent, labels)
    }

    fn with(mut self, name: &str, operator: Operator, parameter: Option<(&str, Vec<usize>)>) -> Chain {
        let mut shapes = vec![self.shape];
        let number = parameter.as_ref().map(|_| self.parameters.len());
        if let Some((name, shape)) = parameter {
            shapes.push(shape.clone());
            self.parameters.push(Parameter { name: name.to_owned(), shape });
        }
        let node = Node { name: name.to_owned(), operator, shapes, parameter: number, strategy: None };
        self.shape = node.output();
        self.nodes.push(node);
        self
    }

    fn ending(mut self, name: &str, operator: Operator, labels: Vec<usize>) -> Network {
        let shapes = vec![self.shape, labels];
        self.nodes.push(Node { name: name.to_owned(), operator, shapes, parameter: None, strategy: None });
        Network { nodes: self.nodes, parameters: self.parameters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_from_the_chain() {
        let network = Chain::new(6, 4).matmul("a", "w", 8).bias_add("b", "v").relu("c").xent("loss");
        let shapes: Vec<_> = network.nodes().iter().map(|node| node.shapes.clone()).collect();
        let six = vec![6, 8];
        let expected =
            [vec![vec![6, 4], vec![4, 8]], vec![six.clone(), vec![8]], vec![six.clone()], vec![six.clone(), vec![6]]];
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
