//! Slurm's hostlist grammar: tables, properties, and the real `scontrol`.

use std::process::Command;

use mpienv_core::seam::Hostlist;
use proptest::prelude::*;

fn expand(text: &str) -> Vec<String> {
    let list = Hostlist::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    list.iter().map(|host| host.into_owned()).collect()
}

/// A list, and its hosts separated by blanks.
const WELL_FORMED: &[(&str, &str)] = &[
    ("a", "a"),
    ("nodeA,nodeB", "nodeA nodeB"),
    ("gpu[01-02]", "gpu01 gpu02"),
    ("node[1-2,4]", "node1 node2 node4"),
    ("a-1-[1-2],a-2-1", "a-1-1 a-1-2 a-2-1"),
    ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ("n[1]", "n1"),
    ("n[1-1]", "n1"),
    ("host[22]", "host22"),
    ("n[2,1,1]", "n2 n1 n1"),
    ("a,a", "a a"),
    ("b,a", "b a"),
    ("n[9-11]", "n9 n10 n11"),
    ("n[09-11]", "n09 n10 n11"),
    ("n[9-011]", "n9 n10 n11"),
    ("n[01-1]", "n01"),
    ("n[001-3]", "n001 n002 n003"),
    ("n[098-101]", "n098 n099 n100 n101"),
    ("n[0-0]", "n0"),
    ("n[00]", "n00"),
    ("n[1,01,001]", "n1 n01 n001"),
    ("[1-2]", "1 2"),
    ("n[1-2][3-4]", "n13 n14 n23 n24"),
    ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
    ("n[1-2][3-4][5-6]", "n135 n136 n235 n236 n145 n146 n245 n246"),
    ("[0-1][0-1][0-1]", "000 001 100 101 010 011 110 111"),
    (
        "n[1-2][3-4][5-6][7-8]",
        "n1357 n1358 n2357 n2358 n1457 n1458 n2457 n2458 n1367 n1368 n2367 n2368 n1467 n1468 n2467 n2468",
    ),
    ("n[00001-00002][1-2]x[7]", "n000011x7 n000021x7 n000012x7 n000022x7"),
    ("n[1-2]n[3-4],c", "n1n3 n1n4 n2n3 n2n4 c"),
    ("n[1-2]-ib", "n1-ib n2-ib"),
    ("foo[1,3]-bar", "foo1-bar foo3-bar"),
    ("[1-2]n", "1n 2n"),
    ("a[1-2]b[1,3]c", "a1b1c a1b3c a2b1c a2b3c"),
    ("n[1-2].example.org,m", "n1.example.org n2.example.org m"),
    ("x_y[1-2]", "x_y1 x_y2"),
    ("node[001-002],host2", "node001 node002 host2"),
    ("n1-n3", "n1-n3"),
    ("n1-2", "n1-2"),
    ("n-1", "n-1"),
    ("a b", "a b"),
    ("a\tb", "a b"),
    ("a\nb", "a b"),
    (" a,b ", "a b"),
    ("a, b", "a b"),
    ("a ,b", "a b"),
    ("a \t, \n b", "a b"),
    ("a  b", "a b"),
    ("n[1-2],n[3-4] n5\n", "n1 n2 n3 n4 n5"),
    ("n[18446744073709551615]", "n18446744073709551615"),
    ("n[18446744073709551613-18446744073709551614]", "n18446744073709551613 n18446744073709551614"),
    ("n[00018446744073709551615]", "n00018446744073709551615"),
    ("héé[1-2]", "héé1 héé2"),
    ("fd00::[1-2]", "fd00::1 fd00::2"),
];

/// A list, and its error.
const MALFORMED: &[(&str, &str)] = &[
    ("", r#"column 1: expected a host, found an empty list"#),
    ("  \t\n", r#"column 1: expected a host, found an empty list"#),
    (",", r#"column 1: expected a host, found ",""#),
    (",a", r#"column 1: expected a host, found ",""#),
    (" ,a", r#"column 2: expected a host, found ",""#),
    ("a,", r#"column 3: expected a host, found the end"#),
    ("a, ", r#"column 4: expected a host, found the end"#),
    ("a,,b", r#"column 3: expected a host, found ",""#),
    ("a, ,b", r#"column 4: expected a host, found ",""#),
    ("foo[", r#"column 4: "[" is never closed"#),
    ("n[1", r#"column 2: "[" is never closed"#),
    ("n[1-2", r#"column 2: "[" is never closed"#),
    ("n[1-", r#"column 2: "[" is never closed"#),
    ("n[1,", r#"column 2: "[" is never closed"#),
    ("node1,n[1-2", r#"column 8: "[" is never closed"#),
    ("n[1][2", r#"column 5: "[" is never closed"#),
    ("héé[1", r#"column 4: "[" is never closed"#),
    ("n]", r#"column 2: "]" closes nothing, expected a "[" before it"#),
    ("]", r#"column 1: "]" closes nothing, expected a "[" before it"#),
    ("n[1]]", r#"column 5: "]" closes nothing, expected a "[" before it"#),
    ("[[1]]", r#"column 2: "[" stands inside brackets, expected a number, ",", "-" or "]""#),
    ("foo[[1,3]", r#"column 5: "[" stands inside brackets, expected a number, ",", "-" or "]""#),
    ("n[1[2]]", r#"column 4: "[" stands inside brackets, expected a number, ",", "-" or "]""#),
    ("[]", r#"column 2: expected a number, found "]""#),
    ("n[]", r#"column 3: expected a number, found "]""#),
    ("n[1-]", r#"column 5: expected a number, found "]""#),
    ("n[-1]", r#"column 3: expected a number, found "-""#),
    ("n[1--2]", r#"column 5: expected a number, found "-""#),
    ("foo[0-1,2--5]", r#"column 11: expected a number, found "-""#),
    ("n[1,]", r#"column 5: expected a number, found "]""#),
    ("n[,1]", r#"column 3: expected a number, found ",""#),
    ("n[1,,2]", r#"column 5: expected a number, found ",""#),
    ("n[a-b]", r#"column 3: expected a number, found "a""#),
    ("n[1-b]", r#"column 5: expected a number, found "b""#),
    ("n[+1]", r#"column 3: expected a number, found "+""#),
    ("n[1, 2]", r#"column 5: expected a number, found " ""#),
    ("n[\"1\"]", r#"column 3: expected a number, found '"'"#),
    ("n[\n1]", r#"column 3: expected a number, found "\n""#),
    ("n[1 2]", r#"column 4: expected "-", "," or "]", found " ""#),
    ("n[0x1]", r#"column 4: expected "-", "," or "]", found "x""#),
    ("n[000x111]", r#"column 6: expected "-", "," or "]", found "x""#),
    ("n[1-2x]", r#"column 6: expected "," or "]", found "x""#),
    ("n[1-2-3]", r#"column 6: expected "," or "]", found "-""#),
    ("n[2-1]", r#"column 3: the range 2-1 runs backwards, expected the lower number first"#),
    ("n[1,10-9]", r#"column 5: the range 10-9 runs backwards, expected the lower number first"#),
    (
        "n[18446744073709551616]",
        "column 3: the number is too big, expected at most 18446744073709551615",
    ),
    (
        "n[1-99999999999999999999]",
        "column 5: the number is too big, expected at most 18446744073709551615",
    ),
    (
        "a,n[0-18446744073709551615]",
        "column 3: the list has too many hosts, expected at most 18446744073709551615",
    ),
    (
        "n[1-9999999999][1-9999999999]",
        "column 1: the list has too many hosts, expected at most 18446744073709551615",
    ),
    (
        "n[1-18446744073709551615],b",
        "column 27: the list has too many hosts, expected at most 18446744073709551615",
    ),
    (
        "{gpu}",
        "column 1: expected a host, found \"{\": host functions are known to slurm's controller only, \
         `scontrol show hostnames` lists the hosts",
    ),
    (
        "a}",
        "column 2: expected a host, found \"}\": host functions are known to slurm's controller only, \
         `scontrol show hostnames` lists the hosts",
    ),
];

#[test]
fn a_well_formed_list_is_expanded() {
    for (text, hosts) in WELL_FORMED {
        let hosts: Vec<&str> = hosts.split(' ').collect();
        assert_eq!(expand(text), hosts, "{text:?}");
        check_views(text);
    }
}

#[test]
fn a_malformed_list_is_an_error_that_shows_the_column() {
    for (text, message) in MALFORMED {
        let error = Hostlist::parse(text).expect_err(text);
        assert_eq!(error.to_string(), *message, "{text:?}");
        assert!(message.starts_with(&format!("column {}: ", error.column)), "{text:?}");
    }
}

#[test]
fn a_list_too_long_to_expand_tells_its_first_hosts_and_its_length() {
    let list = Hostlist::parse("n[0000-9999999999][1-1000000000]z,last").unwrap();
    assert_eq!(list.first(), "n00001z");
    assert_eq!(list.len(), 10_000_000_000 * 1_000_000_000 + 1);
    assert_eq!(list.iter().nth(1).as_deref(), Some("n00002z"));
}

#[test]
fn padding_has_no_upper_limit() {
    let zeros = "0".repeat(100_000);
    let hosts = expand(&format!("n[{zeros}1-2]"));
    assert_eq!(hosts, [format!("n{zeros}1"), format!("n{zeros}2")]);
}

#[test]
fn a_name_without_brackets_is_not_copied() {
    let list = Hostlist::parse("login,n[1-2]").unwrap();
    assert!(matches!(list.first(), std::borrow::Cow::Borrowed("login")));
    assert!(matches!(list.iter().next(), Some(std::borrow::Cow::Borrowed("login"))));
}

/// Checks that `first` and `len` agree with the expansion.
fn check_views(text: &str) {
    let list = Hostlist::parse(text).unwrap();
    let hosts = expand(text);
    assert_eq!(list.first(), hosts[0].as_str(), "{text:?}");
    assert_eq!(list.len(), hosts.len() as u64, "{text:?}");
}

/// A low number with leading zeros, and how many more numbers follow.
type Numbers = (usize, u64, u64);

/// A host expression: text and brackets alternate, and text is last.
#[derive(Clone, Debug)]
struct Expression {
    parts: Vec<(String, Vec<Numbers>)>,
    tail: String,
}

impl Expression {
    fn text(&self) -> String {
        let mut text = String::new();
        for (before, bracket) in &self.parts {
            let ranges: Vec<String> = bracket
                .iter()
                .map(|&(zeros, low, more)| match more {
                    0 => pad(zeros, low),
                    _ => format!("{}-{}", pad(zeros, low), low + more),
                })
                .collect();
            text += &format!("{before}[{}]", ranges.join(","));
        }
        text + &self.tail
    }

    /// The straightforward expansion: nested loops, the innermost over the last bracket, then the
    /// first upward.
    fn hosts(&self) -> Vec<String> {
        let brackets: Vec<Vec<String>> =
            self.parts.iter().map(|(_, bracket)| numbers(bracket)).collect();
        let mut order: Vec<usize> = (0..brackets.len()).collect();
        order.rotate_right(usize::from(!brackets.is_empty()));
        let mut choices = vec![vec![0; brackets.len()]];
        for &axis in order.iter().rev() {
            choices = choices
                .iter()
                .flat_map(|choice| {
                    (0..brackets[axis].len()).map(move |place| {
                        let mut choice = choice.clone();
                        choice[axis] = place;
                        choice
                    })
                })
                .collect();
        }
        let name = |choice: Vec<usize>| {
            let mut name = String::new();
            for ((before, _), (bracket, place)) in
                self.parts.iter().zip(brackets.iter().zip(choice))
            {
                name += before;
                name += &bracket[place];
            }
            name + &self.tail
        };
        choices.into_iter().map(name).collect()
    }
}

fn pad(zeros: usize, number: u64) -> String {
    "0".repeat(zeros) + &number.to_string()
}

fn numbers(bracket: &[Numbers]) -> Vec<String> {
    let mut all = Vec::new();
    for &(zeros, low, more) in bracket {
        let width = pad(zeros, low).len();
        all.extend((low..=low + more).map(|number| format!("{number:0width$}")));
    }
    all
}

fn expression(tail: &'static str) -> impl Strategy<Value = Expression> {
    let name = "[a-zA-Z.][a-zA-Z0-9._-]{0,4}[a-z]";
    let numbers = (0_usize..3, prop_oneof![0_u64..12, 95_u64..105], 0_u64..5);
    let part = ("[a-z-]{0,3}", prop::collection::vec(numbers, 1..4));
    (name, prop::collection::vec(part, 0..4), tail).prop_map(|(name, mut parts, tail)| {
        match parts.first_mut() {
            Some((before, _)) => *before = name,
            None => return Expression { parts, tail: name },
        }
        Expression { parts, tail }
    })
}

fn list(
    tail: &'static str,
    separators: &'static [&'static str],
) -> impl Strategy<Value = (String, Vec<String>)> {
    let separator = prop::sample::select(separators);
    prop::collection::vec((expression(tail), separator), 1..4).prop_map(|expressions| {
        let mut text = String::new();
        let mut hosts = Vec::new();
        for (index, (expression, separator)) in expressions.iter().enumerate() {
            if index > 0 {
                text += separator;
            }
            text += &expression.text();
            hosts.extend(expression.hosts());
        }
        (text, hosts)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_list_expands_as_the_plain_way_does((text, hosts) in list("[a-z.-]{0,3}", &[",", ", ", " ", "\t", "\n", " ,"])) {
        prop_assert_eq!(expand(&text), hosts);
        check_views(&text);
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        survive(&text);
    }

    #[test]
    fn no_text_of_the_grammar_panics(text in "[a\\[\\]0-9,{} \n-]{0,24}") {
        survive(&text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        survive(&String::from_utf8_lossy(&bytes));
    }
}

fn survive(text: &str) {
    match Hostlist::parse(text) {
        Ok(list) => {
            assert_eq!(Some(list.first()), list.iter().next());
            if list.len() < 1000 {
                assert_eq!(list.iter().count() as u64, list.len());
            }
        }
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column), "{text:?}: {error}");
            assert!(!error.to_string().contains('\n'), "{text:?}: {error}");
        }
    }
}

/// The output of `scontrol show hostnames`.
fn scontrol(text: &str, conf: &std::path::Path) -> Vec<String> {
    let output = Command::new("scontrol")
        .args(["show", "hostnames", text])
        .env("SLURM_CONF", conf)
        .output()
        .unwrap();
    assert!(output.status.success(), "{text:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn what_slurm_25_11_expanded_is_expanded_so() {
    #[derive(serde::Deserialize)]
    struct Expansion {
        expr: String,
        hosts: Vec<String>,
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostlists/slurm-25.11.7.json");
    let expansions: Vec<Expansion> =
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(expansions.len(), 150);
    for Expansion { expr, hosts } in expansions {
        assert_eq!(expand(&expr), hosts, "{expr:?}");
        check_views(&expr);
    }
}

#[test]
fn slurm_itself_expands_the_same() {
    if !crate::support::tool::is_there("scontrol") {
        return;
    }
    let conf = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("slurm.conf");
    let text = "ClusterName=test\nSlurmctldHost=localhost\nNodeName=n1 CPUs=1\nPartitionName=main Nodes=ALL\n";
    std::fs::write(&conf, text).unwrap();
    for (text, _) in WELL_FORMED {
        // Slurm 22.05 refuses text after the last bracket, takes line breaks for parts of a name,
        // and crashes on the very largest numbers.
        let suffix = text.match_indices(']').any(|(at, _)| {
            let after = text[at + 1..].split(',').next().unwrap();
            !after.trim().is_empty() && !after.contains(['[', ' '])
        });
        if !suffix && !text.contains('\n') && !text.contains("1844674407370955161") {
            assert_eq!(expand(text), scontrol(text, &conf), "{text:?}");
        }
    }
    // Each case starts a program.
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    let lists = list("", &[",", ", ", " ", "\t", " ,"]);
    let outcome = proptest::test_runner::TestRunner::new(config).run(&lists, |(text, _)| {
        prop_assert_eq!(expand(&text), scontrol(&text, &conf));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
