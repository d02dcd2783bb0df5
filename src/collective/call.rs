//! What all ranks must agree on before they exchange anything.

#[cfg(test)]
mod tests;

use std::fmt;

use super::element::ElementKind;
use super::reduction::Reduction;

/// A collective call, described so that ranks can tell whether they make the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub(super) operation: Operation,
    /// The type of the values; none if bytes or nothing is exchanged.
    pub(super) kind: Option<ElementKind>,
    /// The number of values: of a reduction, a message, or the part of each rank in a gather or
    /// scatter; [`ANY`] if each part has another.
    pub(super) count: u64,
    /// The root, the other rank of a message, or the tag of a message that has one.
    pub(super) root: u32,
    /// Whether the rank refused its own arguments. It takes no part in the call then, but must not
    /// leave the others waiting.
    pub(super) is_refused: bool,
    /// Whether the message is half of a `send_receive`. If the other half is with another rank or
    /// none, this is for errors: the other rank may as well send or receive it alone.
    pub(super) is_half: bool,
    /// The number of the type that the caller means, if its values travel as another; 0 if not.
    pub(super) meant: u8,
}

/// A rank that made another call than the one that had to answer this rank's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Difference {
    /// The other rank.
    pub(crate) rank: usize,
    /// Its call; `None` if it cannot be read.
    pub(crate) found: Option<Call>,
    /// This rank's call.
    pub(crate) own: Call,
}

/// The count of a call whose parts have any lengths.
pub(super) const ANY: u64 = u64::MAX;

macro_rules! operations {
    ($($operation:ident $name:literal,)*) => {
        /// What ranks do together. The discriminant goes into messages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Operation {
            $($operation,)*
        }

        use Operation::{$($operation),*};

        /// All operations, each at the index of its discriminant, and what a user calls for them.
        const NAMES: &[(Operation, &str)] = &[$(($operation, $name)),*];
    };
}

// A new operation goes to the end. Where another one changes its number, `PROTOCOL` goes up.
operations! {
    Barrier "barrier",
    AllGather "all_gather",
    AllToAll "all_to_all",
    Broadcast "broadcast",
    Split "split",
    AllReduceSum "all_reduce_sum",
    AllReduceMin "all_reduce_min",
    AllReduceMax "all_reduce_max",
    ReduceScatterSum "reduce_scatter_sum",
    ReduceScatterMin "reduce_scatter_into (min)",
    ReduceScatterMax "reduce_scatter_into (max)",
    Connect "connect",
    Close "close",
    AllReduceProduct "all_reduce (product)",
    AllReduceMean "all_reduce (mean)",
    ReduceScatterProduct "reduce_scatter_into (product)",
    ReduceScatterMean "reduce_scatter_into (mean)",
    ReduceSum "reduce (sum)",
    ReduceMin "reduce (min)",
    ReduceMax "reduce (max)",
    ReduceProduct "reduce (product)",
    ReduceMean "reduce (mean)",
    Gather "gather",
    Scatter "scatter",
    Send "send",
    Receive "receive",
    SendTagged "send",
    ReceiveTagged "receive",
    AllReduceAnd "all_reduce (band)",
    AllReduceOr "all_reduce (bor)",
    AllReduceXor "all_reduce (bxor)",
    ReduceAnd "reduce (band)",
    ReduceOr "reduce (bor)",
    ReduceXor "reduce (bxor)",
    ReduceScatterAnd "reduce_scatter (band)",
    ReduceScatterOr "reduce_scatter (bor)",
    ReduceScatterXor "reduce_scatter (bxor)",
    AllReduceSparse "all_reduce (sparse)",
    AllGatherUneven "all_gather (uneven)",
    ReduceScatterUneven "reduce_scatter (uneven)",
}

/// The first of the operations that a caller builds of others. They only compare calls.
const BUILT: usize = AllReduceAnd as usize;

/// The number of an operation that a caller builds of others, by its name.
#[must_use]
pub fn built_number(name: &str) -> Option<u8> {
    NAMES[BUILT..].iter().position(|(_, other)| *other == name)?.try_into().ok()
}

/// What a user calls to send and receive at the same time.
pub(super) const SEND_RECEIVE: &str = "send_receive";

/// What a rank breaks that says goodbye while others make calls.
pub(super) const LEAVES_EARLY: &str =
    "a rank that leaves early has returned, closed its group, or failed and printed why";

/// The reductions whose results go to all ranks, in parts to all ranks, or to one rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Results {
    ToAll,
    InParts,
    To(u32),
}

impl Operation {
    fn of_reduction(by: Reduction, results: Results) -> Operation {
        let [to_all, in_parts, to_one] = match by {
            Reduction::Sum => [AllReduceSum, ReduceScatterSum, ReduceSum],
            Reduction::Min => [AllReduceMin, ReduceScatterMin, ReduceMin],
            Reduction::Max => [AllReduceMax, ReduceScatterMax, ReduceMax],
            Reduction::Product => [AllReduceProduct, ReduceScatterProduct, ReduceProduct],
            Reduction::Mean => [AllReduceMean, ReduceScatterMean, ReduceMean],
        };
        match results {
            Results::ToAll => to_all,
            Results::InParts => in_parts,
            Results::To(_) => to_one,
        }
    }

    /// What the user calls.
    pub(super) fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    fn is_reduction(self) -> bool {
        (AllReduceSum as u8..=ReduceScatterMax as u8).contains(&(self as u8))
            || (AllReduceProduct as u8..=ReduceMean as u8).contains(&(self as u8))
    }
}

impl Call {
    pub(super) const BARRIER: Call = Call::of(Barrier, 0);
    pub(super) const SPLIT: Call = Call::of(Split, 0);
    /// What ranks exchange to share memory. No call of a user is the same.
    pub(super) const CONNECT: Call = Call::of(Connect, 0);

    /// Leaves the group. Over MPI, ranks compare it like every other call; over other transports,
    /// it is a goodbye.
    pub(super) const CLOSE: Call = Call::of(Close, 0);

    /// What a rank calls that waits for a message, of which it knows nothing yet.
    pub(super) const RECEIVE: Call = Call::of(ReceiveTagged, 0);

    /// A call that moves bytes or nothing.
    pub(super) const fn of(operation: Operation, count: u64) -> Call {
        Call { operation, kind: None, count, root: 0, is_refused: false, is_half: false, meant: 0 }
    }

    /// A call that moves numbers, of which each part has any count.
    pub(super) const fn of_any(operation: Operation, kind: ElementKind) -> Call {
        Call { kind: Some(kind), ..Call::of(operation, ANY) }
    }

    /// A call with this name whose arguments the rank itself refuses.
    pub(super) fn refused(operation: Operation, name: &str) -> Call {
        let fixed = Call { is_refused: true, ..Call::of(operation, 0) };
        let any = Call { count: ANY, ..fixed };
        if any.name() == name { any } else { fixed }
    }

    /// A call that moves numbers.
    pub(super) fn moving(operation: Operation, kind: ElementKind, count: usize) -> Call {
        Call { kind: Some(kind), ..Call::of(operation, count as u64) }
    }

    /// A call that a caller builds of others, by its number; `None` if no such call has it.
    pub(super) fn built(number: u8, kind: ElementKind, count: u64) -> Option<Call> {
        let &(operation, _) = NAMES.get(BUILT + usize::from(number))?;
        Some(Call { kind: Some(kind), ..Call::of(operation, count) })
    }

    /// The same call, whose caller means the type with this number.
    pub(super) fn meaning(self, meant: u8) -> Call {
        Call { meant, ..self }
    }

    /// The same call with a root.
    pub(super) fn with(self, root: u32) -> Call {
        Call { root, ..self }
    }

    /// The only rank that gets the results of a reduction or gather, or sends the parts of a
    /// scatter; none if all do.
    #[must_use]
    pub fn only_rank(self) -> Option<u32> {
        let has_one = matches!(
            self.operation,
            ReduceSum | ReduceMin | ReduceMax | ReduceProduct | ReduceMean | Gather | Scatter
        );
        has_one.then_some(self.root)
    }

    /// Whether a rank gets the results of a reduction or gather, or sends the parts of a scatter.
    pub(super) fn concerns(self, rank: usize) -> bool {
        self.only_rank().is_none_or(|only| only as usize == rank)
    }

    /// Encodes everything but the count and the root for messages.
    pub(super) fn codes(self) -> [u8; 3] {
        let how = u8::from(self.is_refused) | u8::from(self.is_half) << 1 | self.meant << 2;
        [self.operation as u8, ElementKind::code(self.kind), how]
    }

    /// Decodes a message; `None` if it is none that [`Call::codes`] returns.
    pub(super) fn from_codes(codes: [u8; 3], count: u64, root: u32) -> Option<Call> {
        let [operation, kind, how] = codes;
        let (operation, _) = *NAMES.get(usize::from(operation))?;
        let [is_refused, is_half] = [1, 2].map(|bit| how & bit != 0);
        let meant = check_type(how >> 2)?;
        let kind = ElementKind::from_code(kind)?;
        let call = Call { operation, kind, count, root, is_refused, is_half, meant };
        (!is_half || call.is_message() && !is_refused).then_some(call)
    }

    /// Returns whether the calls are the same reduction, except perhaps for how many numbers they
    /// reduce.
    pub(super) fn differs_in_length_alone(self, other: Call) -> bool {
        self.operation.is_reduction() && Call { count: other.count, ..self } == other
    }

    /// What this call and a different one of another rank break.
    pub(super) fn rule_broken_with(self, other: Call) -> &'static str {
        if other == Call::CLOSE {
            return LEAVES_EARLY;
        }
        let is_matched =
            matches!((self.operation, other.operation), (Send, Receive) | (Receive, Send))
                && Call { operation: other.operation, root: other.root, ..self } == other;
        if self == other || is_matched {
            return "they are calls of two groups: groups that share connections make their calls in \
                    the same order on all ranks, one at a time";
        }
        if self.differs_in_length_alone(other) {
            return "a reduction needs the same count on all ranks";
        }
        if self.is_refused != other.is_refused {
            return "the rank with the invalid arguments has an error that says what is wrong with them";
        }
        let is_same = self.name() == other.name() && self.root == other.root;
        if is_same && !self.is_message() {
            return if self.count == other.count {
                "this call needs the same type and count on all ranks"
            } else {
                "this call needs the same type and count on all ranks; all_gather, all_to_all and \
                 broadcast_vec take any count if all ranks call them"
            };
        }
        if !(self.is_message() && other.is_message()) {
            return "all ranks must make the same calls in the same order";
        }
        // Of a `send_receive`, either half may have been compared.
        let is_answer = self.operation != other.operation || self.is_half && other.is_half;
        let values = |call: Call| (call.kind, call.count, call.meant);
        let has_same = values(self) == values(other);
        if has_same && self.is_half != other.is_half {
            "two ranks that exchange messages must both call send_receive"
        } else if is_answer && !has_same {
            "a message needs the same count and type on both ranks"
        } else if self.is_half && other.is_half {
            "one rank must receive what the other sends, with the same count and type"
        } else {
            "one rank must receive what the other sends, with the same count and type; send_receive does both"
        }
    }

    /// The same call, which names the root or the other rank by its number in the job, given those
    /// of the group's ranks.
    pub(super) fn in_job(self, numbers: &[u32]) -> Call {
        let number = self.preposition().and_then(|_| numbers.get(self.root as usize));
        Call { root: number.copied().unwrap_or(self.root), ..self }
    }

    /// What comes before the root or the other rank, if the call has one.
    fn preposition(self) -> Option<&'static str> {
        match self.operation {
            Broadcast | Scatter | Receive => Some("from"),
            ReduceSum | ReduceMin | ReduceMax | ReduceProduct | ReduceMean | ReduceAnd
            | ReduceOr | ReduceXor | Gather | Send => Some("to"),
            _ => None,
        }
    }

    /// Whether only two ranks make the call.
    pub(super) fn is_message(self) -> bool {
        matches!(self.operation, Send | Receive | SendTagged | ReceiveTagged)
    }

    /// The call of a rank that sends or receives as this call does, and does nothing else.
    pub(super) fn alone(self) -> Call {
        Call { is_half: false, ..self }
    }

    /// Whether this is the call that was due. Where a half is due, one call alone is not.
    pub(super) fn answers(self, due: Call) -> bool {
        if due.is_half { self == due } else { self.alone() == due }
    }

    /// What a rank sends, as so many bytes, that exchanges it for what it receives by this call.
    pub(super) fn exchanged_for(self, bytes: u64) -> Call {
        let size = self.kind.map_or(1, ElementKind::size) as u64;
        Call { operation: Send, count: bytes / size, ..self }
    }

    /// What the user calls.
    pub(super) fn name(self) -> &'static str {
        match self.operation {
            _ if self.is_half => SEND_RECEIVE,
            Broadcast if self.count == ANY => "broadcast_vec",
            AllGather if self.count != ANY => "all_gather_into",
            AllToAll if self.count != ANY => "all_to_all_into",
            operation => operation.name(),
        }
    }
}

/// A call that reduces numbers, and how.
#[derive(Clone, Copy, Debug)]
pub struct Reduce {
    /// What ranks compare.
    pub call: Call,
    pub(super) by: Reduction,
}

impl Reduce {
    pub(super) fn new(by: Reduction, results: Results, kind: ElementKind, count: usize) -> Reduce {
        let root = if let Results::To(root) = results { root } else { 0 };
        let call = Call::moving(Operation::of_reduction(by, results), kind, count).with(root);
        Reduce { call, by }
    }

    /// The same call, whose caller means the type with this number.
    pub(super) fn meaning(self, meant: u8) -> Reduce {
        Reduce { call: self.call.meaning(meant), ..self }
    }
}

/// A message between two ranks of a group, as one of them describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub(super) other: u32,
    /// This rank's call.
    pub(super) said: Call,
    /// The call that the other rank must make. If it is a half, it must be one; otherwise, it may
    /// be [alone](Call::alone) or a half.
    pub(super) heard: Call,
}

impl Message {
    /// A message that `own` sends to `other`.
    pub(super) fn to(other: u32, own: u32, kind: ElementKind, count: usize) -> Message {
        let [said, heard] = [(Send, other), (Receive, own)]
            .map(|(operation, rank)| Call::moving(operation, kind, count).with(rank));
        Message { other, said, heard }
    }

    /// A message that `own` receives from `other`.
    pub(super) fn from(other: u32, own: u32, kind: ElementKind, count: usize) -> Message {
        Message { other, ..Message::to(own, other, kind, count).answered() }
    }

    /// A message with a tag that goes to `other`.
    pub(super) fn tagged(other: u32, kind: ElementKind, count: usize, tag: u32) -> Message {
        let [said, heard] = [SendTagged, ReceiveTagged]
            .map(|operation| Call::moving(operation, kind, count).with(tag));
        Message { other, said, heard }
    }

    /// The other half of the message.
    pub(super) fn answered(self) -> Message {
        Message { said: self.heard, heard: self.said, ..self }
    }

    /// The same message, whose two ranks mean the type with this number.
    pub(super) fn meaning(self, meant: u8) -> Message {
        let Message { other, said, heard } = self;
        Message { other, said: said.meaning(meant), heard: heard.meaning(meant) }
    }

    /// The same message as half of a `send_receive`. In an exchange, both halves are with one rank,
    /// which calls it too.
    pub(super) fn as_half(self, is_exchange: bool) -> Message {
        let Message { said, heard, .. } = self;
        let (said, heard) =
            (Call { is_half: true, ..said }, Call { is_half: is_exchange, ..heard });
        Message { said, heard, ..self }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { root, .. } = self;
        f.write_str(self.name())?;
        if self.is_refused {
            return f.write_str(" with invalid arguments");
        }
        if let Some(kind) = self.kind {
            let (count, name) = as_meant(self.meant, kind, self.count);
            match self.operation {
                _ if self.count == ANY => write!(f, " of any count of {name}")?,
                AllGather | AllToAll | Gather | Scatter => {
                    write!(f, " of {count} {name} for each rank")?;
                }
                _ => write!(f, " of {count} {name}")?,
            }
        }
        if let Some(preposition) = self.preposition() {
            return write!(f, " {preposition} rank {root}");
        }
        match self.operation {
            AllReduceSparse => write!(f, " in {root} dimensions"),
            SendTagged | ReceiveTagged => write!(f, " with tag {root}"),
            _ => Ok(()),
        }
    }
}

/// Types of a caller whose values travel as others, each with its size in bytes. The index and 1 is
/// the number in messages, which leave it 6 bits. A new type goes to the end.
const TYPES: &[(&str, u64)] = &[
    ("int16", 2),
    ("uint16", 2),
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("bytes of another type", 1),
];

const _: () = assert!(TYPES.len() < 1 << 6, "messages have 6 bits for the number");

/// The number of a type whose values travel as others, by its name.
#[must_use]
pub fn type_number(name: &str) -> Option<u8> {
    u8::try_from(TYPES.iter().position(|(other, _)| *other == name)? + 1).ok()
}

/// The number, or `None` if no type has it and it is not 0.
pub(super) fn check_type(number: u8) -> Option<u8> {
    (usize::from(number) <= TYPES.len()).then_some(number)
}

/// How many values of which type a caller means by `count` numbers of a kind.
fn as_meant(number: u8, kind: ElementKind, count: u64) -> (u64, &'static str) {
    let meant = usize::from(number).checked_sub(1).and_then(|index| TYPES.get(index));
    let Some(&(name, size)) = meant else { return (count, kind.name()) };
    // A narrower type is reduced as a wider one, number by number.
    let parts = (size / kind.size() as u64).max(1);
    (count / parts, name)
}
