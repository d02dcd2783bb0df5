//! What oneCCL reads if no launcher that it knows has started it.

use super::{Set, Target, addition, local_rank, local_size, number};

const PAGE: &str = "[env-variables.rst](https://github.com/uxlfoundation/oneCCL/blob/master/doc/rst/source/env-variables.rst)";

pub(super) const SET: Set = Set {
    name: "oneccl",
    title: "oneCCL",
    additions: &[
        addition(
            "CCL_PROCESS_LAUNCHER",
            "`none`: the two variables below give the place",
            PAGE,
            |_| Ok(Some("none".to_owned())),
        ),
        addition(
            "CCL_LOCAL_RANK",
            "the number of this process on its node, from 0",
            PAGE,
            |info| number(Some(local_rank(info, Target::OneCcl)?)),
        ),
        local_size("CCL_LOCAL_SIZE", PAGE),
    ],
    ..Set::PLAIN
};
