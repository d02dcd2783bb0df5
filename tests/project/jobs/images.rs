//! The Dockerfiles, checked by a linter and compared with the project.

use std::fs;
use std::path::Path;

use super::{example, printed};
use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};

const DOCKERFILES: [&str; 3] =
    ["docker/Dockerfile", "azureml/Dockerfile", "azureml/gpu.Dockerfile"];

#[test]
fn a_linter_finds_no_fault_in_the_dockerfiles() {
    let Some(hadolint) = from_python("lint", "hadolint") else { return };
    for file in DOCKERFILES {
        // The images deliberately do not pin the versions of Debian's packages.
        let mut command = clean(hadolint.to_str().unwrap());
        let text = printed(command.args(["--ignore", "DL3008"]).arg(example(file)));
        assert_eq!(text, "");
    }
}

#[test]
fn images_are_built_with_the_oldest_compiler_that_is_promised() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in DOCKERFILES {
        let text = fs::read_to_string(example(file)).unwrap();
        assert!(
            text.contains(&format!("\nFROM rust:{}-", env!("CARGO_PKG_RUST_VERSION"))),
            "{text}"
        );
        // The files that it copies from the sources exist.
        for line in text
            .lines()
            .filter_map(|line| line.strip_prefix("COPY "))
            .filter(|line| !line.starts_with("--"))
        {
            let source = line.split(' ').next().unwrap();
            assert!(top.join(source).exists(), "{file}: {line}");
        }
    }
}

#[test]
fn ssh_and_its_server_take_the_images_settings() {
    if !is_there("sshd") || !is_there("ssh") {
        return;
    }
    // The job provides the key; this one replaces it.
    let folder = tempfile::tempdir().unwrap();
    let (key, settings) = (folder.path().join("key"), folder.path().join("sshd_config"));
    printed(clean("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
    let text = fs::read_to_string(example("docker/sshd_config")).unwrap();
    fs::write(&settings, text.replace("/home/mpiuser/.ssh/id_rsa", key.to_str().unwrap())).unwrap();
    // sshd must be called by its full path, and as root it needs a folder that the image creates.
    const SSHD: &str = r#"PATH=$PATH:/usr/sbin:/sbin; sshd=$(command -v sshd)
        [ "$(id -u)" != 0 ] || exec unshare --mount sh -c 'mount -t tmpfs none /run; mkdir /run/sshd; exec "$@"' sh \
            "$sshd" -T -f "$0"
        exec "$sshd" -T -f "$0""#;
    let said = printed(clean("sh").args(["-c", SSHD]).arg(&settings));
    assert!(said.lines().any(|line| line == "port 2222"), "{said}");
    let said =
        printed(clean("ssh").args(["-G", "-F"]).arg(example("docker/ssh_config")).arg("worker"));
    assert!(said.lines().any(|line| line == "port 2222"), "{said}");
}
