//! The guide's comparison claims about mpienv only what a test confirms.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each row, and the tests that confirm it: file and name.
const SHOWN: &[(&str, &[(&str, &str)])] = &[
    (
        "Open MPI 4",
        &[
            ("recordings", "every_rank_of_every_recording_finds_its_place"),
            ("mpirun", "a_shell_evals_its_own_place"),
        ],
    ),
    ("Open MPI 5", &[("launchers", "open_mpi_5_starts_four")]),
    (
        "Hydra: MPICH, Intel MPI",
        &[("launchers", "mpich_starts_four"), ("launchers", "intel_mpi_starts_four")],
    ),
    ("Slurm", &[("launchers", "slurm_starts_four_and_batch_scripts_are_no_tasks")]),
    (
        "PALS, JSM, Flux, MVAPICH",
        &[
            ("table", "the_table_of_launchers_is_what_the_code_does"),
            ("properties", "all_ranks_of_a_job_agree_and_are_a_permutation"),
        ],
    ),
    (
        "Kubeflow Trainer, AWS Batch",
        &[
            ("table", "the_table_of_launchers_is_what_the_code_does"),
            ("properties", "all_ranks_of_a_job_agree_and_are_a_permutation"),
        ],
    ),
    (
        "all values from one launcher",
        &[("recordings", "of_two_launchers_one_is_taken_whole_and_the_other_is_named")],
    ),
    (
        "names launchers that disagree",
        &[("errors", "two_sets_of_ranks_that_differ_are_a_finding_with_both")],
    ),
    (
        "names the source of each value",
        &[(
            "command",
            "show_prints_a_table_of_values_and_sources_without_color_unless_on_a_terminal",
        )],
    ),
    (
        "errors that name variable, value and remedy",
        &[("errors", "every_fault_names_launcher_variable_value_reason_and_remedy")],
    ),
    (
        "the whole grammar of Slurm's host lists",
        &[
            ("hostlist", "any_list_expands_as_the_plain_way_does"),
            ("hostlist", "slurm_itself_expands_the_same"),
        ],
    ),
    (
        "a separate port for every step of a job",
        &[("launchers", "slurm_starts_four_and_batch_scripts_are_no_tasks")],
    ),
    (
        "IPv6 masters",
        &[
            ("rendezvous", "ranks_meet_over_ipv6_and_by_name"),
            ("programs", "jax_has_the_coordinators_address_with_ipv6_in_brackets"),
        ],
    ),
    (
        "nodes with unequal numbers of ranks",
        &[("properties", "a_slurm_job_of_any_shape_is_read_completely")],
    ),
    ("variables for a shell", &[("dialects", "values_survive_eval_in_dash_byte_for_byte")]),
    ("starts any program", &[("mpirun", "exec_starts_a_program_with_its_own_place")]),
    (
        "starts the workers of a node",
        &[("launch_command", "one_process_on_each_node_starts_its_nodes_part_of_the_job")],
    ),
    (
        "restarts workers that fail",
        &[
            ("restarts", "a_worker_that_fails_starts_all_workers_again_until_they_succeed"),
            (
                "restarts/nodes",
                "a_worker_that_fails_on_one_node_starts_the_workers_of_all_nodes_again",
            ),
        ],
    ),
    (
        "the same restart count on all nodes",
        &[("restarts/nodes", "the_attempt_goes_on_from_the_highest_count_of_any_nodes_platform")],
    ),
    (
        "tests whether the ranks can meet",
        &[(
            "check",
            "a_rank_that_does_not_arrive_is_named_by_rank_0_and_no_rank_of_its_node_repeats_it",
        )],
    ),
    ("inspects the host", &[("doctor", "each_check_fires_and_is_quiet_where_its_cause_is_gone")]),
    (
        "simulates a cluster's environments",
        &[("readme", "every_console_block_prints_what_the_readme_says")],
    ),
    (
        "property tests of what it reads",
        &[("properties", "all_ranks_of_a_job_agree_and_are_a_permutation")],
    ),
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of the rows of the table with this header.
fn table<'a>(page: &'a str, header: &str) -> impl Iterator<Item = Vec<&'a str>> {
    let at = page.find(header).unwrap_or_else(|| panic!("no table {header}"));
    let rows = page[at..].lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

#[test]
fn every_tool_and_every_row_of_the_comparison_has_its_source() {
    let page = read("src/guide/comparison.md");
    let tools: Vec<_> = table(&page, "| tool | repository").map(|row| row[0]).collect();
    for header in ["| | mpienv | JAX ", "| | mpienv | ezpz ", "| | mpienv | rsmpi "] {
        let line = page.lines().find(|line| line.starts_with(header)).unwrap();
        for tool in line.trim_matches('|').split('|').map(str::trim).skip(2) {
            assert!(tools.contains(&tool), "{tool} has no source");
        }
    }
    let rows: Vec<_> = table(&page, "| rows | files")
        .flat_map(|row| row[0].split("; ").collect::<Vec<_>>())
        .collect();
    assert_eq!(rows.len(), SHOWN.len());
    for (row, _) in SHOWN {
        assert!(rows.contains(row), "{row} has no source");
    }
}

#[test]
fn every_row_of_the_comparison_is_shown_by_a_test() {
    let page = read("src/guide/comparison.md");
    let rows: Vec<Vec<&str>> = table(&page, "| | mpienv | JAX ").collect();
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, SHOWN.iter().map(|(row, _)| *row).collect::<Vec<_>>());
    for row in &rows {
        assert!(row[1].starts_with("yes"), "{}: what is not shown is not in the table", row[0]);
    }
    let tests: BTreeSet<_> = SHOWN.iter().flat_map(|(_, tests)| *tests).collect();
    for (file, name) in tests {
        let folder = if *file == "readme" { "project" } else { "it" };
        let path = format!("tests/{folder}/{file}.rs");
        let source = read(&path);
        let at =
            source.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("{path} has no {name}"));
        assert!(source[..at].trim_end().ends_with("#[test]"), "{path}: {name} is not a test");
    }
}
