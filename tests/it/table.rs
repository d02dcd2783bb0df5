//! The tables of launchers, in README and in the guide, are what the code does.

use std::fs;
use std::path::Path;

use mpienv::simulate::{Job, JobBuilder};
use mpienv::{ClusterInfo, Launcher, Port};

/// A job on two nodes, with two processes on each where the launcher starts so many.
fn job(builder: JobBuilder) -> Job {
    let builder = builder.nodes(2).per_node(2);
    builder.clone().build().or_else(|_| builder.per_node(1).build()).unwrap()
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

/// A launcher's row in README, and in the guide.
fn rows(launcher: Launcher, version: &str, job: &Job) -> [String; 2] {
    let variables: Vec<_> = launcher.variables().iter().map(|name| format!("`{name}`")).collect();
    let (told, not) = told(job);
    let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let (told, not) = (list(["rank", "world size"].into_iter().chain(told).collect()), list(not));
    let name = format!("| {}{version} | `{launcher}`", launcher.title());
    [format!("{name} | {not} |"), format!("{name} | {} | {told} | {not} |", variables.join(", "))]
}

/// The lines of a page's table of launchers.
fn table(page: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("| launcher | name |"));
    lines.take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
}

#[test]
fn the_tables_of_launchers_are_what_the_code_does() {
    let mut expected = [
        vec!["| launcher | name | what it does not tell on two nodes |".to_owned(), "| --- | --- | --- |".to_owned()],
        vec![
            "| launcher | name | variables that are read | tells | does not tell (on two nodes) |".to_owned(),
            "| --- | --- | --- | --- | --- |".to_owned(),
        ],
    ];
    for &launcher in Launcher::ALL.iter().filter(|&&launcher| launcher != Launcher::Alone) {
        let variants = match launcher {
            Launcher::OpenMpi => vec![(" 4", Job::open_mpi()), (" 5", Job::open_mpi_5())],
            Launcher::Hydra => vec![(" (MPICH)", Job::hydra()), (" (Intel MPI)", Job::intel_mpi())],
            _ => vec![("", Job::of(launcher))],
        };
        for (version, builder) in variants {
            let [short, long] = rows(launcher, version, &job(builder));
            expected[0].push(short);
            expected[1].push(long);
        }
    }
    for (page, expected) in ["README.md", "src/guide/variables.md"].iter().zip(expected) {
        assert_eq!(table(page), expected, "the table of {page} should be:\n{}\n", expected.join("\n"));
    }
}

#[test]
fn alone_is_a_process_without_variables() {
    assert_eq!(Launcher::Alone.variables(), [""; 0]);
}

#[test]
fn the_launchers_that_identify_a_job_are_those_that_the_guide_names() {
    let mut named = Vec::new();
    for &launcher in Launcher::ALL.iter().filter(|&&launcher| launcher != Launcher::Alone) {
        let vars = job(Job::of(launcher)).environment(0).unwrap();
        if !ClusterInfo::from_vars(vars).unwrap().token().as_bytes().is_empty() {
            named.push(launcher.title());
        }
    }
    named.sort_unstable();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/security.md");
    let guide = fs::read_to_string(guide).unwrap();
    let sentence = format!("the identity of the job as its launcher gives it ({})", named.join(", "));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&guide).contains(&sentence), "{sentence}");
}
