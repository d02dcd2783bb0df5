//! Tensors on one rank, and their numbers as bytes.

/// A row-major tensor. A tensor without dimensions is a single number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

impl Tensor {
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Tensor {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Tensor { shape, data }
    }

    pub fn zeros(shape: Vec<usize>) -> Tensor {
        let count = shape.iter().product();
        Tensor { shape, data: vec![0.0; count] }
    }

    /// The rows of a matrix.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        // `chunks_exact` needs a length above 0.
        self.data.chunks_exact(self.columns().max(1))
    }

    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let columns = self.columns().max(1);
        self.data.chunks_exact_mut(columns)
    }

    /// Changes the shape and reuses the memory. Leaves the numbers unspecified.
    pub fn shape_as(&mut self, shape: &[usize]) {
        self.shape.clear();
        self.shape.extend_from_slice(shape);
        self.data.resize(shape.iter().product(), 0.0);
    }

    /// Copies another tensor into this one and reuses the memory.
    pub fn copy(&mut self, other: &Tensor) {
        self.shape.clone_from(&other.shape);
        self.data.clone_from(&other.data);
    }

    /// Overwrites `turned` with the transposed matrix.
    pub fn transpose(&self, turned: &mut Tensor) {
        turned.shape_as(&[self.shape[1], self.shape[0]]);
        let step = self.shape[0];
        for (row, numbers) in self.rows().enumerate() {
            for (place, &number) in turned.data[row..].iter_mut().step_by(step).zip(numbers) {
                *place = number;
            }
        }
    }

    /// The size of the last dimension, or 1 if there are no dimensions.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Overwrites `found` with one of `parts` equal parts along `dim`.
    pub fn put_part(&self, dim: usize, part: usize, parts: usize, found: &mut Tensor) {
        let whole: usize = self.shape[dim..].iter().product();
        let length = whole / parts;
        found.shape.clone_from(&self.shape);
        found.shape[dim] /= parts;
        found.data.clear();
        for row in self.data.chunks_exact(whole) {
            found.data.extend_from_slice(&row[part * length..][..length]);
        }
    }

    /// Joins parts of `shape` along `dim`. `all` has the numbers of one part after another.
    pub fn joined(dim: usize, shape: &[usize], all: &[f32]) -> Tensor {
        let [count, row]: [usize; 2] = [shape, &shape[dim..]].map(|sizes| sizes.iter().product());
        let mut whole = Tensor { shape: shape.to_vec(), data: Vec::with_capacity(all.len()) };
        whole.shape[dim] *= all.len() / count;
        for start in (0..count).step_by(row) {
            for part in all.chunks_exact(count) {
                whole.data.extend_from_slice(&part[start..][..row]);
            }
        }
        whole
    }

    /// Returns the part of `shape` that starts at `offset`.
    pub fn cut(&self, offset: &[usize], shape: &[usize]) -> Tensor {
        let data = places(&self.shape, offset, shape).map(|place| self.data[place]).collect();
        Tensor { shape: shape.to_vec(), data }
    }
}

/// Returns the indices, in a tensor of shape `whole`, of the numbers in a part of shape `part` at
/// `offset`.
pub fn places(whole: &[usize], offset: &[usize], part: &[usize]) -> impl Iterator<Item = usize> {
    let count: usize = part.iter().product();
    (0..count).map(move |index| {
        let (mut rest, mut stride, mut place) = (index, 1, 0);
        for dim in (0..whole.len()).rev() {
            place += (offset[dim] + rest % part[dim]) * stride;
            rest /= part[dim];
            stride *= whole[dim];
        }
        place
    })
}

/// Converts to little-endian bytes.
pub fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The inverse of [`to_bytes`]. An incomplete number at the end is ignored.
pub fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::new(shape.to_vec(), (0..count).map(|number| number as f32).collect())
    }

    fn split(whole: &Tensor, dim: usize, parts: usize) -> Vec<Tensor> {
        let mut found = vec![Tensor::default(); parts];
        for (part, found) in found.iter_mut().enumerate() {
            whole.put_part(dim, part, parts, found);
        }
        found
    }

    #[test]
    fn parts_put_together_are_the_whole() {
        let whole = counted(&[4, 6]);
        for (dim, parts) in [(0, 1), (0, 2), (0, 4), (1, 2), (1, 3), (1, 6)] {
            let split = split(&whole, dim, parts);
            let all: Vec<f32> = split.iter().flat_map(|part| part.data.clone()).collect();
            assert_eq!(Tensor::joined(dim, &split[0].shape, &all), whole);
        }
        assert_eq!(split(&whole, 1, 3)[2].data, [4., 5., 10., 11., 16., 17., 22., 23.]);
    }

    #[test]
    fn a_matrix_is_transposed() {
        let mut turned = Tensor::zeros(vec![1]);
        counted(&[2, 3]).transpose(&mut turned);
        assert_eq!(turned, Tensor::new(vec![3, 2], vec![0., 3., 1., 4., 2., 5.]));
    }

    #[test]
    fn a_part_is_cut_out() {
        let part = counted(&[4, 6]).cut(&[2, 3], &[2, 3]);
        assert_eq!(part, Tensor::new(vec![2, 3], vec![15., 16., 17., 21., 22., 23.]));
        assert_eq!(counted(&[]).cut(&[], &[]), counted(&[]));
    }
}
