//! The numbers that ranks can sum.

/// A number that ranks can sum: `f32` or `f64`.
///
/// ```no_run
/// use mpienv::mpi::{Communicator, Element, MpiError};
///
/// fn sum<T: Element>(world: &Communicator, value: T) -> Result<T, MpiError> {
///     let mut values = [value];
///     world.all_reduce_sum(&mut values)?;
///     Ok(values[0])
/// }
/// ```
pub trait Element: sealed::Sealed + Copy + 'static {
    #[doc(hidden)]
    const KIND: ElementKind;
}

/// The MPI datatype of an element.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum ElementKind {
    /// MPI_FLOAT.
    F32,
    /// MPI_DOUBLE.
    F64,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Element for f32 {
    const KIND: ElementKind = ElementKind::F32;
}

impl Element for f64 {
    const KIND: ElementKind = ElementKind::F64;
}
