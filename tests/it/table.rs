//! What README says of the launchers is what the code does; `.ci/generate` writes it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::tool::inherited;
use mpienv::simulate::{Job, JobBuilder};
use mpienv::{ClusterInfo, Launcher, Port};

/// A job on two nodes, with two processes on each where the launcher starts so many; without a launcher there is none.
fn job(builder: &JobBuilder) -> Option<Job> {
    let builder = builder.clone().nodes(2);
    builder.clone().per_node(2).build().or_else(|_| builder.build()).ok()
}

fn readme() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")
}

/// README has the expected text between the first `start` and the next `end`.
fn assert_generated(start: &str, end: &str, expected: &str) {
    let text = fs::read_to_string(readme()).unwrap();
    let (before, rest) = text.split_once(start).unwrap_or_else(|| panic!("README lacks {start:?}"));
    let (found, after) = rest.split_once(end).unwrap();
    // Within a paragraph lines end anywhere.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words(found) != words(expected) && inherited("MPIENV_GENERATE").is_some() {
        return fs::write(readme(), [before, start, expected, end, after].concat()).unwrap();
    }
    assert_eq!(words(found), words(expected), "run .ci/generate");
}

/// Whether a rank is told something.
type Told = dyn Fn(&ClusterInfo) -> bool;

/// What all ranks of the job are told, and what some are not.
fn told(job: &Job) -> (Vec<&'static str>, Vec<&'static str>) {
    let infos: Vec<_> = job.environments().map(|vars| ClusterInfo::from_vars(vars).unwrap()).collect();
    let own_port = |info: &ClusterInfo| ![Port::SEVERAL_NODES, Port::ONE_NODE].contains(&info.master_port());
    let values: [(&str, &Told); 6] = [
        ("local rank", &|info| info.local_rank().is_some()),
        ("local size", &|info| info.local_world_size().is_some()),
        ("node rank", &|info| info.node_rank().is_some()),
        ("node count", &|info| info.node_count().is_some()),
        ("master", &|info| info.master_addr().is_ok()),
        ("port", &own_port),
    ];
    let (told, not): (Vec<_>, Vec<_>) = values.into_iter().partition(|(_, has)| infos.iter().all(has));
    let names = |values: Vec<(&'static str, _)>| values.into_iter().map(|(name, _)| name).collect();
    (names(told), names(not))
}

fn row(builder: &JobBuilder, job: &Job) -> String {
    let launcher = job.launcher();
    let variables: Vec<_> = launcher.variables().map(|variable| format!("`{}`", variable.name)).collect();
    let (told, not) = told(job);
    let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let told = list(["rank", "world size"].into_iter().chain(told).collect());
    let title = builder.title();
    format!("| {title} | `{launcher}` | {} | {told} | {} |", variables.join(", "), list(not))
}

// One test, as both parts are written to one file.
#[test]
fn what_the_readme_says_of_the_launchers_is_what_the_code_does() {
    let rows: Vec<_> = Job::of_each().filter_map(|builder| Some(row(&builder, &job(&builder)?))).collect();
    let header = "| launcher | name | variables that are read | tells | does not tell (on two nodes) |\n| --- | --- | --- | --- | --- |\n";
    assert_generated(header, "\n\n", &rows.join("\n"));

    let is_identified = |job: &Job| {
        let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
        !info.token().as_bytes().is_empty()
    };
    let jobs = Launcher::ALL.iter().filter_map(|launcher| job(&Job::of(*launcher)));
    let mut named: Vec<_> = jobs.filter(is_identified).map(|job| job.launcher().title()).collect();
    named.sort_unstable();
    assert_generated("the job's identity as its launcher tells it (", ")", &named.join(", "));
}

#[test]
fn alone_is_a_process_without_variables() {
    assert_eq!(Launcher::Alone.variables().count(), 0);
}
