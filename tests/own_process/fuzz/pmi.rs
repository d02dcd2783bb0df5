//! Whatever a launcher's PMI server answers: an answer that names a host, or an error in time.

use crate::support::mutation::fuzz;
use crate::support::pmi::{ANSWERS, ANSWERS_OF_FLUX, heard};
use proptest::prelude::*;

#[test]
fn any_answer_of_a_launcher_gives_a_host_or_an_error() {
    let one_node = ANSWERS.replace("(0,2,1)", "(0,1,2)");
    let of_mpich_5 = ANSWERS.replace("(vector,(0,2,1))", "(vector,[(0,1,1)]x2)");
    let without = ANSWERS.replace("rc=0 msg=success value=(vector,(0,2,1))", "rc=-1");
    let second = ANSWERS.replacen(
        "cmd=get_result rc=-1",
        "cmd=get_result rc=0 value=a\ncmd=get_result rc=-1",
        1,
    );
    let seeds = [ANSWERS, ANSWERS_OF_FLUX, &one_node, &of_mpich_5, &without, &second];
    let seeds = seeds.map(|text| text.as_bytes().to_vec());
    let words: &[&[u8]] = &[
        b"\n",
        b" ",
        b"=",
        b"cmd=",
        b"rc=0",
        b"rc=-1",
        b"rc=99999999999",
        b"value=",
        b"mpienv1#",
        b"#",
        b"pmi_version=2",
        b"vallen_max=1",
        b"keylen_max=0",
        b"4294967295",
        b"(vector,",
        b"]x16777216",
        b"\xff",
        b"\x1b[2J",
        b"\0",
        b"localhost",
        b"127.0.0.1",
    ];
    fuzz("pmi", &seeds, words, |bytes| {
        match heard(bytes) {
            Ok(answer) => {
                prop_assert_eq!(answer.host.is_none(), answer.node_count == Some(1));
                let ranks = [answer.node_rank, answer.local_rank];
                for (rank, count) in ranks.into_iter().zip([answer.node_count, answer.local_size]) {
                    prop_assert_eq!(rank.is_some(), count.is_some());
                    prop_assert!(rank.is_none() || rank < count && count <= Some(2));
                }
                prop_assert!(answer.secret.is_none_or(|secret| secret.as_bytes().len() == 64));
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(!text.contains(char::is_control) && text.len() < 2000, "{text}");
                // A secret can be hidden only behind the word that rank 0 stores before it.
                let at = |line: &[u8], part: &[u8]| {
                    line.windows(part.len()).position(|found| found == part)
                };
                let is_hidden = bytes.split(|&byte| byte == b'\n').all(|line| {
                    at(line, b"#00112233")
                        .is_none_or(|secret| at(line, b"mpienv1").is_some_and(|it| it < secret))
                });
                prop_assert!(!is_hidden || !text.contains("#00112233"), "{text}");
            }
        }
        Ok(())
    });
}
