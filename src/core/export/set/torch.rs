//! PyTorch's variables, which every set has.

use super::Set;

pub(super) const SET: Set = Set { name: "torch", title: "PyTorch", ..Set::PLAIN };
