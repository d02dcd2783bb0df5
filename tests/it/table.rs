//! README's table of launchers is what the code does.

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

fn row(launcher: Launcher, version: &str, job: &Job) -> String {
    let variables: Vec<_> = launcher.variables().iter().map(|name| format!("`{name}`")).collect();
    let (told, not) = told(job);
    let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let told = list(["rank", "world size"].into_iter().chain(told).collect());
    format!("| {}{version} | `{launcher}` | {} | {told} | {} |", launcher.title(), variables.join(", "), list(not))
}

#[test]
fn the_table_of_launchers_in_the_readme_is_what_the_code_does() {
    let mut expected = vec![
        "| launcher | name | variables that are read | tells | does not tell (on two nodes) |".to_owned(),
        "| --- | --- | --- | --- | --- |".to_owned(),
    ];
    for &launcher in Launcher::ALL.iter().filter(|&&launcher| launcher != Launcher::Alone) {
        match launcher {
            Launcher::OpenMpi => {
                expected.push(row(launcher, " 4", &job(Job::open_mpi())));
                expected.push(row(launcher, " 5", &job(Job::open_mpi_5())));
            }
            Launcher::Hydra => {
                expected.push(row(launcher, " (MPICH)", &job(Job::hydra())));
                expected.push(row(launcher, " (Intel MPI)", &job(Job::intel_mpi())));
            }
            _ => expected.push(row(launcher, "", &job(Job::of(launcher)))),
        }
    }
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let lines: Vec<_> = readme.lines().skip_while(|line| !line.starts_with("| launcher | name |")).collect();
    let found: Vec<_> = lines.into_iter().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(found, expected, "the table should be:\n{}\n", expected.join("\n"));
}

#[test]
fn alone_is_a_process_without_variables() {
    assert_eq!(Launcher::Alone.variables(), [""; 0]);
}

#[test]
fn the_launchers_that_identify_a_job_are_those_that_the_readme_names() {
    let mut named = Vec::new();
    for &launcher in Launcher::ALL.iter().filter(|&&launcher| launcher != Launcher::Alone) {
        let vars = job(Job::of(launcher)).environment(0).unwrap();
        if !ClusterInfo::from_vars(vars).unwrap().token().as_bytes().is_empty() {
            named.push(launcher.title());
        }
    }
    named.sort_unstable();
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let sentence = format!("the job's identity as its launcher tells it ({})", named.join(", "));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&readme).contains(&sentence), "{sentence}");
}
