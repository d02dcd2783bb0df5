use proptest::prelude::*;

use super::*;

/// Rank 5 of 8, the second of four on the second of two nodes.
fn rank_5() -> ClusterInfo {
    let vars = [
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "node[0-1]"),
        ("SLURM_STEP_ID", "0"),
        ("MASTER_ADDR", "fe80::1"),
        ("MASTER_PORT", "65530"),
    ];
    ClusterInfo::from_vars(vars).unwrap()
}

fn expand(word: &str) -> Result<Option<String>, String> {
    rank_5().placeholders().expand(word).map_err(|error| error.to_string())
}

#[test]
fn each_placeholder_has_its_value() {
    for (word, value) in [
        ("{rank}/{world_size}", "5/8"),
        ("{local_rank} {local_world_size} {nproc_per_node}", "1 4 4"),
        ("-n{node_rank}of{nnodes}", "-n1of2"),
        ("{hosts}", "node0,node1"),
        ("{master_addr}", "fe80::1"),
        ("{master}", "[fe80::1]:65530"),
        ("{ rank }", "5"),
        ("{node_rank*nproc_per_node}", "4"),
        ("{node_rank * 8}", "8"),
        ("{master_port+1}", "65531"),
        ("{nnodes-1}", "1"),
        ("{master_port+rank}", "65535"),
        ("{{\"a\": {rank}}}", "{\"a\": 5}"),
        ("{other_nodes}--a={rank}", "--a=5"),
        ("$(id) `id` {rank}", "$(id) `id` 5"),
        ("", ""),
    ] {
        assert_eq!(expand(word), Ok(Some(value.to_owned())), "{word}");
    }
    assert_eq!(expand("{first_node}--head"), Ok(None));
}

#[test]
fn what_is_wrong_with_a_word_is_said_with_the_word() {
    let names = "rank, world_size, local_rank";
    for (word, text) in [
        ("{nod_rank}", names),
        ("{token}", names),
        ("{MPIENV_TOKEN}", names),
        ("{first_node}{nod_rank}", names),
        ("{first_node}{rank+nod_rank}", names),
        ("a{b", "a { is not closed"),
        ("a}b", "a } has no { before it"),
        ("{}", "{} is not a name, or a sum"),
        ("{\"a\": 1}", "write {{ and }} for braces"),
        ("{rank+1+1}", "is not a name, or a sum"),
        ("{+1}", "is not a name, or a sum"),
        ("{7}", "is not a name, or a sum"),
        ("{rank+99999999999999999999}", "is not a name, or a sum"),
        ("{master_addr+1}", "{master_addr} is not a number"),
        ("{master_port+6}", "65530 + 6 is not a number from 1 to 65535"),
        ("{rank-6}", "5 - 6 is not a number from 0"),
        ("{rank*18446744073709551615}", "5 * 18446744073709551615 is not a number"),
        ("x{first_node}", "{first_node} stands only at the beginning of a word"),
        (
            "{other_nodes}",
            "{other_nodes} stands only at the beginning of a word, and needs a word after it",
        ),
        ("{first_node}{other_nodes}x", "{other_nodes} stands only at the beginning"),
    ] {
        let error = expand(word).unwrap_err();
        assert!(
            error.starts_with(&format!("{word:?}: ")) && error.contains(text),
            "{word}: {error}"
        );
    }
}

#[test]
fn a_value_that_is_not_known_is_an_error_that_names_those_that_are() {
    let vars = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "a")];
    let values = ClusterInfo::from_vars(vars).unwrap().placeholders();
    for word in ["{node_rank}", "{local_rank}", "{other_nodes}--headless"] {
        let error = values.expand(word).unwrap_err().to_string();
        assert!(error.contains(" is not known here: "), "{error}");
        assert!(
            error.ends_with("; known are rank, world_size, master_addr, master_port, master, own_addr, interface"),
            "{error}"
        );
    }
}

#[test]
fn words_that_are_for_other_nodes_are_left_out_and_something_must_be_left() {
    let values = rank_5().placeholders();
    let words = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
    let left = values
        .expand_words(&words(&["{first_node}head", "{other_nodes}worker", "{rank}"]))
        .unwrap();
    assert_eq!(left, ["worker", "5"]);
    let error =
        values.expand_words(&words(&["{first_node}head", "{first_node}--block"])).unwrap_err();
    assert!(error.to_string().contains("no word of the command is left"), "{error}");
}

#[test]
fn bytes_that_are_not_text_pass_unless_they_have_braces() {
    use std::os::unix::ffi::OsStringExt;
    let values = rank_5().placeholders();
    let junk = OsString::from_vec(vec![0xff, b'a']);
    assert_eq!(values.expand_words(std::slice::from_ref(&junk)).unwrap(), [junk]);
    assert!(values.expand_words(&[OsString::from_vec(vec![0xff, b'{'])]).is_err());
}

proptest! {
    #[test]
    fn a_text_without_braces_expands_to_itself(text in "[^{}]*") {
        prop_assert_eq!(expand(&text), Ok(Some(text)));
    }

    #[test]
    fn doubled_braces_give_the_text_back(text in ".*") {
        let doubled = text.replace('{', "{{").replace('}', "}}");
        prop_assert_eq!(expand(&doubled), Ok(Some(text)));
    }

    #[test]
    fn no_word_panics(word in "[{}+*a-z_0-9 -]*") {
        let _ = expand(&word);
    }

    #[test]
    fn what_is_around_a_placeholder_stays(before in "[^{}]*", after in "[^{}]*") {
        prop_assert_eq!(expand(&format!("{before}{{rank}}{after}")), Ok(Some(format!("{before}5{after}"))));
    }
}

#[test]
fn a_secret_becomes_a_variable_and_never_a_word() {
    let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    let values = rank_5().placeholders().with_secret("s3cret");
    let expanded =
        values.expand_apart(&words("env A={secret} B={rank} {other_nodes}C=x{secret} run {rank}"));
    let (visible, variables) = expanded.unwrap();
    assert_eq!(visible, words("env B=5 run 5"));
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(variables, [variable("A", "s3cret"), variable("C", "xs3cret")]);
    let elsewhere = values.expand_apart(&words("env {first_node}A={secret} run"));
    assert_eq!(elsewhere.unwrap(), (words("env run"), vec![]));
    for visible in ["run {secret}", "A={secret} run", "env -i A={secret} run", "env {secret}=a run"]
    {
        let error = Placeholders::check_words(&words(visible)).unwrap_err().to_string();
        assert!(error.contains("other users of the host can read"), "{visible}: {error}");
    }
    let error = rank_5().placeholders().expand("{secret}").unwrap_err().to_string();
    assert!(
        error.contains("{secret} is not known here: the ranks get it when they meet"),
        "{error}"
    );
    assert!(
        values.expand("{secret+1}").unwrap_err().to_string().contains("{secret} is not a number")
    );
}
