//! Why a call failed, as the caller of a C function learns it.

use std::cell::RefCell;
use std::fmt;

use mpienv_collective::{CollectiveError, ConnectError};
use mpienv_core::ErrorKind;

/// What a function returns. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// The call or its arguments are wrong, on this rank or another.
    Refused = 1,
    Lost = 2,
    TimedOut = 3,
    Canceled = 4,
    /// The system or the network does not allow it.
    Environment = 5,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    text: String,
    /// The rank of the group that the text names.
    rank: Option<u32>,
}

thread_local! {
    /// The failure of this thread's last call that failed.
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

impl Failure {
    pub(crate) fn argument(reason: impl fmt::Display) -> Failure {
        Failure { code: Code::Refused, text: reason.to_string(), rank: None }
    }

    /// Keeps the failure for this thread, and returns its code.
    pub(crate) fn keep(self) -> i32 {
        let code = self.code as i32;
        LAST.set(Some(self));
        code
    }

    /// The text of this thread's last failure, and the rank that it names.
    pub(crate) fn with_last<R>(read: impl FnOnce(&str, Option<u32>) -> R) -> R {
        LAST.with_borrow(|last| match last {
            Some(failure) => read(&failure.text, failure.rank),
            None => read("", None),
        })
    }
}

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Lost => Code::Lost,
        ErrorKind::TimedOut => Code::TimedOut,
        ErrorKind::Canceled => Code::Canceled,
        ErrorKind::Environment => Code::Environment,
        _ => Code::Refused,
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Failure {
        Failure { code: code_of(error.kind()), text: error.to_string(), rank: error.rank() }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let rank = match &error {
            ConnectError::Collective(error) => error.rank(),
            _ => None,
        };
        Failure { code: code_of(error.kind()), text: error.to_string(), rank }
    }
}
