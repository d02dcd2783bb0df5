//! What oneCCL reads if no launcher that it knows has started it.

use super::{Set, Target, addition, local_rank, local_size, number};
use crate::launcher::oneccl::{BY, LOCAL_RANK, LOCAL_SIZE, NONE};

const PAGE: &str = "[env-variables.rst](https://github.com/uxlfoundation/oneCCL/blob/master/doc/rst/source/env-variables.rst)";

pub(super) const SET: Set = Set {
    name: "oneccl",
    title: "oneCCL",
    page: PAGE,
    additions: &[
        addition(BY, "`none`: the two variables below give the place", |_| {
            Ok(Some(NONE.to_owned()))
        }),
        addition(LOCAL_RANK, "the number of this process on its node, from 0", |info| {
            number(Some(local_rank(info, Target::OneCcl)?))
        }),
        local_size(LOCAL_SIZE),
    ],
    ..Set::PLAIN
};
