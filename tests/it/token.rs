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
    assert_eq!(
        token(&[rank("0", "3024551937").as_slice(), &[("MPIENV_TOKEN", "sesame")]].concat()),
        "sesame"
    );
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
fn each_launch_of_a_whole_job_draws_a_token_for_its_ranks() {
    let tokens = || {
        let mut command = crate::support::tool::clean("mpienv");
        command.args(["launch", "--nproc-per-node", "2", "--", "sh", "-c"]);
        command.arg(r#"echo "${MPIENV_CONTEXT##*token=}""#).env("MASTER_PORT", "31803");
        let output = command.output().unwrap();
        let lines: Vec<String> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| line[4..].to_owned())
            .collect();
        assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].len() == 32, "{lines:?}");
        lines
    };
    assert_ne!(tokens(), tokens());
}

#[test]
fn flux_tasks_of_two_instances_are_two_jobs() {
    let task = |path: &str| {
        let vars = [
            ("FLUX_TASK_RANK", "0"),
            ("FLUX_JOB_SIZE", "2"),
            ("FLUX_JOB_ID", "f2"),
            ("FLUX_JOB_ID_PATH", path),
        ];
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
    assert_eq!(
        (exports.get("MPIENV_TOKEN"), exports.get("MPIENV_TOKEN_FILE")),
        (None, Some(path.as_str()))
    );
}

#[cfg(unix)]
#[test]
fn a_secret_in_a_file_that_others_can_read_or_write_is_refused() {
    for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o666] {
        let (_folder, path) = secret_file(b"sesame", mode);
        let error = ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap_err();
        assert_eq!(
            (error.variable(), error.value()),
            (Some("MPIENV_TOKEN_FILE"), Some(path.as_str()))
        );
        let text = error.to_string();
        let said = format!(
            "MPIENV_TOKEN_FILE={path:?}: group or others can read or write the file (mode {mode:04o}); "
        );
        assert!(
            text.starts_with(&said)
                && text
                    .contains(&format!("; if it holds only your secret, run `chmod 600 {path}`")),
            "{text}"
        );
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
        let text =
            ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap_err().to_string();
        assert!(text.contains(reason) && text.contains("openssl rand -hex 32"), "{text}");
        // The file may be one that must not be overwritten, such as another program's key.
        assert_eq!(text.matches(&path).count(), 1, "{text}");
    }
    let text =
        |path: &str| ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path)]).unwrap_err().to_string();
    assert!(text("/no/such/file").contains("the file cannot be read: No such file or directory"));
    assert!(
        text("~/.secret")
            .contains("`~` in quotes is not expanded: set it to \"$HOME/.secret\", or unset")
    );
    assert!(text("/dev/null").contains("not a regular file; name a file"));
    let both = [("MPIENV_TOKEN_FILE", "/no/such/file"), ("MPIENV_TOKEN", "sesame")];
    let text = ClusterInfo::from_vars(both).unwrap_err().to_string();
    assert_eq!(
        text,
        "MPIENV_TOKEN_FILE=\"/no/such/file\": MPIENV_TOKEN is set too; unset one of them"
    );
}

#[cfg(unix)]
#[test]
fn a_setting_of_security_that_is_set_and_blank_is_an_error() {
    for (name, remedy) in [
        ("MPIENV_TOKEN", "set it to what `openssl rand -hex 32` prints, on all ranks"),
        ("MPIENV_TOKEN_FILE", "name the file that holds the secret"),
        ("MPIENV_AUTH", "set it to munge on all ranks"),
    ] {
        for blank in ["", " ", "\t\n", "\u{a0}"] {
            let error = ClusterInfo::from_vars([(name, blank)]).unwrap_err();
            let expected = format!(
                "{name}: set but empty, so it would leave the job without the protection that it stands for; {remedy}, or unset {name}"
            );
            assert_eq!((error.to_string(), error.variable()), (expected, Some(name)));
        }
    }
}

#[cfg(unix)]
#[test]
fn no_command_prints_a_part_of_a_secret_that_is_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;

    let secret = std::ffi::OsStr::from_bytes(b"sesame\xff open");
    let environment = mpienv::Environment::from_vars([("MPIENV_TOKEN", secret)]);
    let read = environment.get_str("MPIENV_TOKEN").unwrap_err();
    let error = ClusterInfo::from_environment(&environment).unwrap_err();
    assert_eq!(error.value(), None);
    for text in
        [format!("{environment:?}"), format!("{read:?} {read}"), format!("{error:?} {error}")]
    {
        assert!(!text.contains("sesame") && !text.contains("open\""), "{text}");
    }
    for words in [
        &["show"][..],
        &["show", "--json"],
        &["doctor"],
        &["export"],
        &["export", "--json"],
        &["check"],
        &["exec", "--dry-run", "--", "true"],
        &["exec", "--", "true"],
        &["launch", "--nproc-per-node", "2", "--dry-run", "--", "true"],
        &["launch", "--nproc-per-node", "2", "--", "true"],
    ] {
        let output = crate::support::tool::clean("mpienv")
            .args(words)
            .env("MPIENV_TOKEN", secret)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(!output.status.success(), "{words:?}");
        assert!(
            !said.windows(6).any(|part| part == b"sesame"),
            "{words:?}: {}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_secret_in_a_file_of_another_user_is_refused() {
    if !crate::support::root::is_root() {
        return;
    }
    let (_folder, path) = secret_file(b"sesame", 0o600);
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    // The path may be a link of this user.
    let link = format!("{path}.link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [path, link] {
        let text =
            ClusterInfo::from_vars([("MPIENV_TOKEN_FILE", path.as_str())]).unwrap_err().to_string();
        let expected = format!(
            "MPIENV_TOKEN_FILE={path:?}: user 12345, who owns the file, knows and can change the secret, and this process runs as \
             user 0; write a new secret with `(umask 077 && openssl rand -hex 32 > ~/.mpienv-secret)`, copy this file to every \
             host, and name it in MPIENV_TOKEN_FILE; or run as user 12345"
        );
        assert_eq!(text, expected);
    }
}

#[cfg(feature = "rendezvous")]
#[test]
fn a_blank_token_of_a_program_is_an_error_before_any_connection() {
    use mpienv::rendezvous::Rendezvous;
    use mpienv::{ErrorKind, Host, Port, Rank};

    for token in [&b""[..], b" \n"] {
        for index in [0, 1] {
            let rank = Rank::new(index, 2).unwrap();
            let error = Rendezvous::new(rank, Host::LOOPBACK, Port::ONE_NODE)
                .token(token)
                .gather("")
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(
                error
                    .to_string()
                    .starts_with("the job token is set but empty, so any process could meet"),
                "{error}"
            );
        }
    }
}

#[test]
fn show_and_check_say_what_protects_the_meeting_and_show_no_secret() {
    let shown = |vars: &[(&str, &str)]| {
        let mut command = crate::support::tool::clean("mpienv");
        let output = command.arg("show").envs(vars.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("protection ")).unwrap().to_owned();
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&[]), "none neither a secret nor MUNGE");
    assert_eq!(shown(&[("MPIENV_TOKEN", "sesame")]), "secret MPIENV_TOKEN");
    #[cfg(unix)]
    {
        let (_folder, path) = secret_file(b"sesame", 0o600);
        assert_eq!(shown(&[("MPIENV_TOKEN_FILE", &path)]), "secret MPIENV_TOKEN_FILE");
    }
    assert_eq!(shown(&[("MPIENV_AUTH", "munge:/a")]), "MUNGE MPIENV_AUTH=munge:/a");
    assert_eq!(shown(&[("MPIENV_AUTH", "auto")]), "MUNGE or none MPIENV_AUTH=auto");
    // The name of a job is known to others.
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "12"),
    ];
    assert_eq!(shown(&step), "none neither a secret nor MUNGE");
    for (vars, end) in
        [(&[][..], ", without a secret"), (&[("MPIENV_TOKEN", "sesame")], ", with a secret")]
    {
        let mut command = crate::support::tool::clean("mpienv");
        command.args(["launch", "--nproc-per-node", "2", "--", "mpienv", "check", "--timeout"]);
        command.arg(crate::support::timeout::PATIENT).envs(vars.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().next().is_some_and(|line| line.ends_with(end)), "{text}");
    }
}
