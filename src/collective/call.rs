//! What all ranks must agree on before they exchange anything.

#[cfg(feature = "mpi")]
mod over_mpi;

use std::fmt;

use super::element::{ElementKind, Numbers, Reduction};

/// A collective call, described so that ranks can tell whether they make the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub(super) operation: Operation,
    pub(super) kind: Option<ElementKind>,
    /// The number of values in a reduction, the root of a broadcast, or the bytes of a part in an
    /// all-to-all.
    pub(super) count: u64,
    /// Whether the rank refused its own arguments. It takes no part in the call then, but must not
    /// leave the others waiting.
    pub(super) is_refused: bool,
}

/// What ranks do together. The discriminant goes into messages.
// A new operation goes to the end. Where another one changes its number, `PROTOCOL` goes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Barrier,
    AllGather,
    AllToAll,
    Broadcast,
    Split,
    AllReduceSum,
    AllReduceMin,
    AllReduceMax,
    ReduceScatterSum,
    ReduceScatterMin,
    ReduceScatterMax,
    Connect,
    Close,
}

use Operation::{
    AllGather, AllReduceMax, AllReduceMin, AllReduceSum, AllToAll, Barrier, Broadcast, Close,
    Connect, ReduceScatterMax, ReduceScatterMin, ReduceScatterSum, Split,
};

/// All operations, each at the index of its discriminant, and their names.
const NAMES: [(Operation, &str); 13] = [
    (Barrier, "barrier"),
    (AllGather, "all_gather"),
    (AllToAll, "all_to_all"),
    (Broadcast, "broadcast"),
    (Split, "split"),
    (AllReduceSum, "all_reduce_sum"),
    (AllReduceMin, "all_reduce_min"),
    (AllReduceMax, "all_reduce_max"),
    (ReduceScatterSum, "reduce_scatter_sum"),
    (ReduceScatterMin, "reduce_scatter_min"),
    (ReduceScatterMax, "reduce_scatter_max"),
    (Connect, "connect"),
    (Close, "close"),
];

impl Call {
    pub(super) const BARRIER: Call = Call::of(Barrier, 0);
    pub(super) const ALL_GATHER: Call = Call::of(AllGather, 0);
    pub(super) const SPLIT: Call = Call::of(Split, 0);
    /// What ranks exchange to share memory. No call of a user is the same.
    pub(super) const CONNECT: Call = Call::of(Connect, 0);

    const fn of(operation: Operation, count: u64) -> Call {
        Call { operation, kind: None, count, is_refused: false }
    }

    /// A call whose arguments the rank itself refuses.
    pub(super) fn refused(operation: Operation) -> Call {
        Call { is_refused: true, ..Call::of(operation, 0) }
    }

    pub(super) fn broadcast(root: u32) -> Call {
        Call::of(Broadcast, root.into())
    }

    pub(super) fn all_to_all(length: usize) -> Call {
        Call::of(AllToAll, length as u64)
    }

    pub(super) fn all_reduce(numbers: &Numbers<'_>, by: Reduction) -> Call {
        let operation = match by {
            Reduction::Sum => AllReduceSum,
            Reduction::Min => AllReduceMin,
            Reduction::Max => AllReduceMax,
        };
        Call { kind: Some(numbers.kind()), ..Call::of(operation, numbers.count() as u64) }
    }

    pub(super) fn reduce_scatter(numbers: &Numbers<'_>, by: Reduction) -> Call {
        let operation = match by {
            Reduction::Sum => ReduceScatterSum,
            Reduction::Min => ReduceScatterMin,
            Reduction::Max => ReduceScatterMax,
        };
        Call { operation, ..Call::all_reduce(numbers, by) }
    }

    /// Encodes everything but the count for messages.
    pub(super) fn codes(self) -> [u8; 3] {
        [self.operation as u8, ElementKind::code(self.kind), self.is_refused.into()]
    }

    /// Decodes a message; `None` if it is none that [`Call::codes`] returns.
    pub(super) fn from_codes([operation, kind, refused]: [u8; 3], count: u64) -> Option<Call> {
        let (operation, _) = *NAMES.get(usize::from(operation))?;
        let is_refused = match refused {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Call { operation, kind: ElementKind::from_code(kind)?, count, is_refused })
    }

    /// Returns whether the calls are the same reduction, except perhaps for how many numbers they
    /// reduce.
    pub(super) fn differs_in_length_alone(self, other: Call) -> bool {
        self.kind.is_some() && Call { count: other.count, ..self } == other
    }

    pub(super) fn name(self) -> &'static str {
        NAMES[self.operation as usize].1
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, count) = (self.name(), self.count);
        match (self.operation, self.kind) {
            _ if self.is_refused => write!(f, "{name} with invalid arguments"),
            (_, Some(kind)) => write!(f, "{name} of {count} {}", kind.name()),
            (Broadcast, None) => write!(f, "{name} from rank {count}"),
            (AllToAll, None) => write!(f, "{name} of parts of {count} bytes"),
            _ => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_out_of_a_message_as_it_went_in() {
        let kinds = [None, Some(ElementKind::F32), Some(ElementKind::U64)];
        for (operation, _) in NAMES {
            for (kind, is_refused) in
                kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
            {
                let call = Call { operation, kind, count: 7, is_refused };
                assert_eq!(Call::from_codes(call.codes(), 7), Some(call));
            }
        }
        for codes in [[NAMES.len() as u8, 0, 0], [0, 7, 0], [0, 0, 2]] {
            assert_eq!(Call::from_codes(codes, 7), None, "{codes:?}");
        }
    }

    #[test]
    fn a_call_is_described_as_a_user_wrote_it() {
        let sum = Call::all_reduce(&Numbers::new(&mut [0.0_f32; 10]), Reduction::Sum);
        assert_eq!(sum.to_string(), "all_reduce_sum of 10 f32");
        assert_eq!(Call::broadcast(3).to_string(), "broadcast from rank 3");
        assert_eq!(Call::all_to_all(64).to_string(), "all_to_all of parts of 64 bytes");
        assert_eq!(Call::BARRIER.to_string(), "barrier");
        assert_eq!(Call::refused(Broadcast).to_string(), "broadcast with invalid arguments");
        assert!(sum.differs_in_length_alone(Call { count: 11, ..sum }));
        let doubles = Call { kind: Some(ElementKind::F64), count: 11, ..sum };
        assert!(!sum.differs_in_length_alone(doubles));
        assert!(!Call::broadcast(0).differs_in_length_alone(Call::broadcast(1)));
    }
}
