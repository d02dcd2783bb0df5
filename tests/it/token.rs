//! Two jobs have different tokens, and all ranks of one job have the same token.

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

/// A file with this text that only its owner may read.
#[cfg(unix)]
fn secret_file(text: &[u8], mode: u32) -> (tempfile::TempDir, String) {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[cfg(unix)]
#[test]
fn a_secret_comes_from_a_file_without_the_line_end() {
    let (_folder, path) = secret_file(b"sesame\n", 0o600);
    let info = ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap();
    assert_eq!(info.token().as_bytes(), b"sesame");
    assert!(!format!("{info:?}").contains("sesame"));
    // Workers also read the file: their environment does not contain the secret.
    let exports = info.workers(2).unwrap()[1].exports().unwrap();
    assert_eq!((exports.get("MPIENV_TOKEN"), exports.get("MPIENV_TOKEN_FILE")), (None, Some(path.as_str())));
}

#[cfg(unix)]
#[test]
fn a_secret_in_a_file_that_others_can_read_or_write_is_refused() {
    for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666] {
        let (_folder, path) = secret_file(b"sesame", mode);
        let error = ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap_err();
        assert_eq!((error.variable(), error.value()), (Some("MPIENV_TOKEN_FILE"), Some(path.as_str())));
        let text = error.to_string();
        let said =
            format!("MPIENV_TOKEN_FILE={path:?}: group or others can read or write the file (mode {mode:04o}); ");
        assert!(text.starts_with(&said) && text.contains(&format!("run `chmod 600 {path}`")), "{text}");
        assert!(!text.contains("sesame"), "{text}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_without_a_secret_is_an_error_with_a_remedy() {
    for (bytes, reason) in [
        (&b" \n"[..], "the file is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (&[b'x'; 300], "the secret is longer than 255 bytes"),
    ] {
        let (_folder, path) = secret_file(bytes, 0o600);
        let text = ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap_err().to_string();
        assert!(text.contains(reason) && text.contains("openssl rand -hex 32"), "{text}");
    }
    let text = |path: &str| ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path)]).unwrap_err().to_string();
    assert!(text("/no/such/file").contains("the file cannot be read: No such file or directory"));
    assert!(text("/dev/null").contains("not a regular file; name a file"));
    let both = [("MPIENV_TOKEN_FILE", "/no/such/file"), ("MPIENV_TOKEN", "sesame")];
    let text = ClusterInfo::from_vars(both).unwrap_err().to_string();
    assert_eq!(text, "MPIENV_TOKEN_FILE=\"/no/such/file\": MPIENV_TOKEN is set too; unset one of them");
}
