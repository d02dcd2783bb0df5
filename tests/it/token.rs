//! Two jobs have two tokens, and all ranks of one have the same.

use mpienv::ClusterInfo;

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
fn flux_tasks_of_two_instances_are_two_jobs() {
    let task = |path: &str| {
        let vars = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2"), ("FLUX_JOB_ID", "f2"), ("FLUX_JOB_ID_PATH", path)];
        ClusterInfo::from_vars(vars).unwrap()
    };
    let ports = ["/f1/f2", "/f3/f2"].map(|path| task(path).master_port());
    assert_ne!(ports[0], ports[1]);
    assert_ne!(task("/f1/f2").token(), task("/f3/f2").token());
    let error = task("/f2").exports().unwrap_err().to_string();
    assert!(error.contains("flux job taskmap --hostname=0 $FLUX_JOB_ID"), "{error}");
}
