//! Training on one process in plain loops, with which sharded training is compared.

use mpienv_sharding::operator::Operator;
use mpienv_sharding::tensor::Tensor;

use super::random_network::{Case, LEARNING_RATE, MOMENTUM};

/// The results of training.
pub struct Dense {
    pub losses: Vec<f64>,
    /// The numbers of each parameter.
    pub parameters: Vec<Vec<f64>>,
}

/// Rows of numbers.
type Matrix = Vec<Vec<f64>>;

fn matrix(tensor: &Tensor) -> Matrix {
    tensor.rows().map(|row| row.iter().copied().map(f64::from).collect()).collect()
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let cell =
        |row: &Vec<f64>, column: usize| row.iter().zip(b).map(|(x, other)| x * other[column]).sum();
    a.iter().map(|row| (0..b[0].len()).map(|column| cell(row, column)).collect()).collect()
}

fn transposed(a: &Matrix) -> Matrix {
    (0..a[0].len()).map(|column| a.iter().map(|row| row[column]).collect()).collect()
}

/// Trains for `steps` steps.
pub fn train(case: &Case, steps: u64) -> Dense {
    let mut parameters: Vec<Matrix> = case.parameters.iter().map(matrix).collect();
    let mut velocities: Vec<Matrix> = parameters
        .iter()
        .map(|parameter| vec![vec![0.0; parameter[0].len()]; parameter.len()])
        .collect();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let (loss, gradients) = gradients(case, &parameters);
        losses.push(loss);
        for ((parameter, velocity), gradient) in
            parameters.iter_mut().zip(&mut velocities).zip(gradients)
        {
            for ((parameter, velocity), gradient) in
                parameter.iter_mut().zip(velocity).zip(gradient)
            {
                for ((number, velocity), slope) in parameter.iter_mut().zip(velocity).zip(gradient)
                {
                    *velocity = MOMENTUM * *velocity + slope;
                    *number -= LEARNING_RATE * *velocity;
                }
            }
        }
    }
    let parameters = parameters.iter().map(|rows| rows.concat()).collect();
    Dense { losses, parameters }
}

fn gradients(case: &Case, parameters: &[Matrix]) -> (f64, Vec<Matrix>) {
    let nodes = &case.network.nodes;
    let mut values = vec![matrix(&case.samples)];
    for node in &nodes[..nodes.len() - 1] {
        let value = values.last().unwrap();
        let parameter = node.parameter.map(|number| &parameters[number]);
        values.push(match node.operator {
            Operator::MatMul => product(value, parameter.unwrap()),
            Operator::BiasAdd => {
                let add = |row: &Vec<f64>| {
                    row.iter().zip(&parameter.unwrap()[0]).map(|(x, b)| x + b).collect()
                };
                value.iter().map(add).collect()
            }
            _ => value.iter().map(|row| row.iter().map(|x| x.max(0.0)).collect()).collect(),
        });
    }
    let (loss, mut slope) = loss(case, values.last().unwrap());
    let mut gradients = vec![Vec::new(); parameters.len()];
    for (node, pair) in nodes.iter().zip(values.windows(2)).rev() {
        let (input, output) = (&pair[0], &pair[1]);
        match (node.operator, node.parameter) {
            (Operator::MatMul, Some(number)) => {
                gradients[number] = product(&transposed(input), &slope);
                slope = product(&slope, &transposed(&parameters[number]));
            }
            (Operator::BiasAdd, Some(number)) => {
                gradients[number] =
                    vec![transposed(&slope).iter().map(|column| column.iter().sum()).collect()];
            }
            _ => {
                for (slopes, row) in slope.iter_mut().zip(output) {
                    for (slope, number) in slopes.iter_mut().zip(row) {
                        *slope = if *number > 0.0 { *slope } else { 0.0 };
                    }
                }
            }
        }
    }
    (loss, gradients)
}

fn loss(case: &Case, value: &Matrix) -> (f64, Matrix) {
    let (rows, columns) = (value.len() as f64, value[0].len() as f64);
    let mut loss = 0.0;
    let mut slope = value.clone();
    for (index, row) in value.iter().enumerate() {
        if case.network.nodes.last().unwrap().operator == Operator::Mse {
            for (column, number) in row.iter().enumerate() {
                let difference = number - f64::from(case.labels.data[index * row.len() + column]);
                loss += difference * difference / (rows * columns);
                slope[index][column] = 2.0 * difference / (rows * columns);
            }
        } else {
            let total: f64 = row.iter().map(|x| x.exp()).sum();
            let right = case.labels.data[index] as usize;
            loss += (total.ln() - row[right]) / rows;
            for (column, number) in row.iter().enumerate() {
                let is_right = if column == right { 1.0 } else { 0.0 };
                slope[index][column] = (number.exp() / total - is_right) / rows;
            }
        }
    }
    (loss, slope)
}
