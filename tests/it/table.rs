//! The tables of launchers and programs in the guide match the code.

use std::fs;
use std::path::Path;

use crate::support::tool::inherited;
use mpienv::simulate::{Job, JobBuilder};
use mpienv::{ClusterInfo, Launcher, Port, Target};
use mpienv_core::seam::{OWN_VARIABLES, Placeholders};

/// A job on two nodes, with two processes on each if the launcher can start them; `None` without a
/// launcher.
fn job(builder: &JobBuilder) -> Option<Job> {
    let builder = builder.clone().nodes(2);
    builder.clone().per_node(2).build().or_else(|_| builder.build()).ok()
}

/// Asserts that a page of the documentation has the expected text between the first `start` and the
/// next `end`.
fn assert_generated(page: &str, start: &str, end: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(start).unwrap_or_else(|| panic!("{page} lacks {start:?}"));
    let (found, after) = rest.split_once(end).unwrap();
    // Line breaks within a paragraph do not matter.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words(found) != words(expected) && inherited("MPIENV_GENERATE").is_some() {
        return fs::write(path, [before, start, expected, end, after].concat()).unwrap();
    }
    assert_eq!(words(found), words(expected), "{page}: run .ci/generate");
}

/// Whether a rank knows something.
type Told = dyn Fn(&ClusterInfo) -> bool;

/// The values that all ranks of the job know, and those that some do not know.
fn known(job: &Job) -> (Vec<&'static str>, Vec<&'static str>) {
    let infos: Vec<_> =
        job.environments().map(|vars| ClusterInfo::from_vars(vars).unwrap()).collect();
    let own_port =
        |info: &ClusterInfo| ![Port::SEVERAL_NODES, Port::ONE_NODE].contains(&info.master_port());
    let values: [(&str, &Told); 6] = [
        ("local rank", &|info| info.local_rank().is_some()),
        ("local size", &|info| info.local_world_size().is_some()),
        ("node rank", &|info| info.node_rank().is_some()),
        ("node count", &|info| info.node_count().is_some()),
        ("master", &|info| info.master_addr().is_ok()),
        ("port", &own_port),
    ];
    let (known, not): (Vec<_>, Vec<_>) =
        values.into_iter().partition(|(_, has)| infos.iter().all(has));
    let names = |values: Vec<(&'static str, _)>| values.into_iter().map(|(name, _)| name).collect();
    (names(known), names(not))
}

/// A launcher's row in the guide.
fn row(builder: &JobBuilder, job: &Job) -> String {
    let launcher = job.launcher();
    let variables: Vec<_> =
        launcher.variables().map(|variable| format!("`{}`", variable.name)).collect();
    let (known, not) = known(job);
    let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let (known, not) = (list(["rank", "world size"].into_iter().chain(known).collect()), list(not));
    let (title, variables) = (builder.title(), variables.join(", "));
    format!("| {title} | `{launcher}` | {variables} | {known} | {not} |")
}

#[test]
fn the_table_of_launchers_is_what_the_code_does() {
    let rows: Vec<_> =
        Job::of_each().filter_map(|builder| Some(row(&builder, &job(&builder)?))).collect();
    let header = "| launcher | name | variables that are read | provides | does not provide (on two nodes) |\n| --- | --- | --- | --- | --- |\n";
    assert_generated("src/guide/variables.md", header, "\n\n", &rows.join("\n"));
}

#[test]
fn the_tables_of_programs_are_what_the_code_does() {
    let sets = || Target::ALL.iter().filter(|set| set.variables().count() > 0);
    let unset = |set: &Target| match set.removed_prefixes() {
        [] => "-".to_owned(),
        prefixes => {
            prefixes.iter().map(|prefix| format!("`{prefix}*`")).collect::<Vec<_>>().join(", ")
        }
    };
    let note = |set: &Target| {
        if set.note().is_empty() { "-" } else { set.note().trim_start_matches("; ") }
    };
    let rows = sets().map(|set| {
        format!("| `{}` | {} | {} | {} |", set.name(), set.title(), unset(set), note(set))
    });
    let header = "| `--for` | program | unsets if inherited | note |\n| --- | --- | --- | --- |\n";
    assert_generated(
        "src/guide/variables.md",
        header,
        "\n\n",
        &rows.collect::<Vec<_>>().join("\n"),
    );
    let rows = sets().flat_map(|set| {
        set.variables().map(|variable| {
            let (name, meaning, page) = (variable.name, variable.meaning, variable.page);
            format!("| `{}` | `{name}` | {meaning} | {page} |", set.name())
        })
    });
    let header = "| `--for` | variable | value | read in |\n| --- | --- | --- | --- |\n";
    assert_generated(
        "src/guide/variables.md",
        header,
        "\n\n",
        &rows.collect::<Vec<_>>().join("\n"),
    );
    let names = sets().map(|set| format!("`{}`", set.name())).collect::<Vec<_>>().join(", ");
    assert_generated(
        "src/guide/commands.md",
        "[the variables of other programs][variables.md#what-it-sets]: ",
        ".",
        &names,
    );
    let rows = Placeholders::names().map(|(name, meaning)| format!("| `{{{name}}}` | {meaning} |"));
    let header = "| placeholder | what it becomes |\n| --- | --- |\n";
    assert_generated("src/guide/programs.md", header, "\n\n", &rows.collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_table_of_mpienvs_own_variables_is_that_of_the_manual_page() {
    let code = |names: &str| format!("`{}`", names.replace(", ", "`, `"));
    let own = OWN_VARIABLES.iter().filter(|(names, _)| names.starts_with("MPIENV_"));
    let rows = own.map(|(names, meaning)| format!("| {} | {meaning} |", code(names)));
    let header = "| variable | meaning |\n| --- | --- |\n";
    let rows = rows.collect::<Vec<_>>().join("\n");
    assert_generated("src/guide/variables.md", header, "\n\n", &rows);
}

#[test]
fn the_launchers_that_identify_a_job_are_those_that_the_guide_names() {
    let is_identified = |job: &Job| {
        let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
        !info.token().as_bytes().is_empty()
    };
    let jobs = Launcher::ALL.iter().filter_map(|launcher| job(&Job::of(*launcher)));
    let mut named: Vec<_> = jobs.filter(is_identified).map(|job| job.launcher().title()).collect();
    named.sort_unstable();
    let start = "the identity of the job as its launcher gives it (";
    assert_generated("src/guide/security.md", start, ")", &named.join(", "));
}

#[test]
fn the_launchers_that_list_hosts_are_those_that_the_guide_names() {
    let lists_hosts =
        |job: &Job| ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap().hosts().is_some();
    let jobs = Launcher::ALL.iter().filter_map(|launcher| job(&Job::of(*launcher)));
    let named: Vec<_> = jobs.filter(lists_hosts).map(|job| job.launcher().title()).collect();
    let start = "the launcher's list of all hosts, in the order of the nodes, rank 0's first: ";
    assert_generated("src/guide/variables.md", start, ", and `--ask-pmix`", &named.join(", "));
}

#[test]
fn alone_is_a_process_without_variables() {
    assert_eq!(Launcher::Alone.variables().count(), 0);
}
