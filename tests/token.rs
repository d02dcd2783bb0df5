//! Two jobs have two tokens, and all ranks of one have the same.

use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher};

fn token(vars: &[(&str, &str)]) -> String {
    let info = ClusterInfo::from_vars(vars.iter().copied()).unwrap();
    assert!(!format!("{info:?}").contains("sesame"), "a token may be a secret");
    String::from_utf8(info.token().as_bytes().to_vec()).unwrap()
}

#[test]
fn a_token_follows_from_the_job_unless_one_is_set() {
    let rank = |rank: &'static str, namespace: &'static str| {
        [
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", namespace),
        ]
    };
    assert_eq!(token(&rank("0", "3024551937")), token(&rank("1", "3024551937")));
    assert_ne!(token(&rank("0", "3024551937")), token(&rank("0", "3024551938")));
    assert_eq!(token(&[rank("0", "3024551937").as_slice(), &[("MPIENV_TOKEN", "sesame")]].concat()), "sesame");
    assert_eq!(token(&[("RANK", "0"), ("WORLD_SIZE", "2")]), "");
}

#[test]
fn workers_inherit_the_token() {
    let info = ClusterInfo::from_vars([("MPIENV_TOKEN", "sesame")]).unwrap();
    let exports = info.workers(2).unwrap()[1].exports().unwrap();
    assert_eq!(exports.get("MPIENV_TOKEN"), Some("sesame"));
    assert_eq!(info.exports().unwrap().get("MPIENV_TOKEN"), None);
}

#[test]
fn the_launchers_that_identify_a_job_are_those_that_the_readme_names() {
    let readme = include_str!("../README.md");
    let (_, list) = readme.split_once("identity as its launcher tells it (").unwrap();
    let named: Vec<&str> = list.split_once(')').unwrap().0.split(',').map(str::trim).collect();
    let mut found = Vec::new();
    for launcher in [
        Launcher::OpenMpi,
        Launcher::Slurm,
        Launcher::Flux,
        Launcher::Jsm,
        Launcher::Pals,
        Launcher::Hydra,
        Launcher::Mvapich,
        Launcher::Torchrun,
        Launcher::User,
        Launcher::SageMaker,
        Launcher::Kubernetes,
        Launcher::AwsBatch,
    ] {
        let job = Job::of(launcher).nodes(2).build().unwrap();
        let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
        assert_eq!(info.launcher(), launcher);
        if !info.token().as_bytes().is_empty() {
            found.push(launcher.to_string());
        }
    }
    let plain = |name: &str| name.to_lowercase().replace([' ', '-'], "");
    assert_eq!(found.iter().map(|name| plain(name)).collect::<Vec<_>>(), named.iter().map(|name| plain(name)).collect::<Vec<_>>());
}
