//! The README's pictures of a terminal show what the commands print.

use std::fs;
use std::path::Path;

use crate::support::tool::{clean, is_there};

/// The lines of a picture, without their colors.
fn lines(picture: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github").join(picture);
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("<text ")).map(|line| {
        let pieces = line.split('<').filter_map(|piece| Some(piece.split_once('>')?.1));
        pieces.collect::<String>().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    });
    lines.collect()
}

/// A line without the parts that differ between runs and hosts.
fn steady(line: &str, host: &str) -> String {
    let of_host = ["mpienv ", "NCCL selects ", "threads ", "binding "]
        .into_iter()
        .find(|name| line.starts_with(name));
    if let Some(name) = of_host {
        return name.to_owned();
    }
    let word = |word: &str| match word.rsplit_once(':') {
        Some((front, port)) if port.parse::<u16>().is_ok() => format!("{front}:PORT"),
        _ if word == host => "node0".to_owned(),
        _ if word.parse::<u16>().is_ok_and(|port| port >= 1024) => "PORT".to_owned(),
        _ if word.contains('.') && word.parse::<f64>().is_ok() => "SECONDS".to_owned(),
        _ => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Leaves out the warning of this host's bridges, which other hosts do not have.
fn without_bridges(printed: &str) -> String {
    let mut is_bridges = false;
    let lines = printed.lines().filter(|line| {
        let detail = ["why:", "remedy:"].iter().any(|word| line.trim_start().starts_with(word));
        is_bridges = line.contains("warning [nccl-bridge]") || is_bridges && detail;
        !is_bridges
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// A line of the table of `check --mesh` without the measured numbers.
fn without_numbers(line: &str) -> String {
    let is_row = line.starts_with("[0] node ");
    let words = line.split_whitespace().enumerate();
    let word = |(at, word): (usize, &str)| match word.parse::<f64>() {
        Ok(_) if is_row && at > 2 => "NUMBER".to_owned(),
        _ => word.to_owned(),
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// Runs the command of a picture's first line; it must print the other lines.
fn is_true(picture: &str) {
    let Some((printed, expected)) = printed_and_shown(picture) else { return };
    assert_eq!(printed, expected, "{picture} is out of date: .ci/generate writes it anew");
}

/// What the command of a picture's first line prints, and the picture's other lines: both sorted.
fn printed_and_shown(picture: &str) -> Option<(Vec<String>, Vec<String>)> {
    if !is_there("mpirun") || !is_there("bash") {
        return None;
    }
    let host = String::from_utf8(clean("uname").arg("-n").output().unwrap().stdout).unwrap();
    let shown = lines(picture);
    let command = shown[0].strip_prefix("$ ").unwrap();
    let mut bash = clean("bash");
    bash.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let output = bash.args(["-c", &format!("exec 2>&1; {command}")]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed = without_bridges(&printed);
    // mpirun's own message about the exit code is between rulers. mpirun forwards stdout and stderr
    // in any order.
    let mut is_mpiruns = false;
    let printed = printed.lines().filter(|line| {
        let is_ruler = line.starts_with("----------");
        is_mpiruns ^= is_ruler;
        !is_mpiruns && !is_ruler
    });
    let sorted = |lines: &mut dyn Iterator<Item = &str>| {
        let mut lines: Vec<_> = lines
            .map(|line| steady(&without_numbers(line), host.trim()))
            .filter(|line| !line.is_empty())
            .collect();
        lines.sort_unstable();
        lines
    };
    let expected = sorted(&mut shown[1..].iter().map(String::as_str));
    assert!(expected.len() > 2, "{shown:?}");
    Some((sorted(&mut { printed }), expected))
}

#[test]
fn the_picture_of_check_is_what_check_prints() {
    is_true("check.svg");
}

#[test]
fn the_picture_of_doctor_is_what_doctor_prints() {
    is_true("doctor.svg");
}

#[test]
fn the_picture_of_the_mesh_is_what_check_prints() {
    let Some((printed, shown)) = printed_and_shown("mesh.svg") else { return };
    // On a busy machine, a connection may be slow, which adds lines.
    let missing: Vec<_> = shown.iter().filter(|line| !printed.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:#?} of {printed:#?}");
}

#[test]
fn the_readme_or_the_page_for_contributors_shows_every_picture() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["README.md", "src/guide/how_it_works.md"]
        .map(|page| fs::read_to_string(top.join(page)).unwrap())
        .concat();
    let files = fs::read_dir(top.join(".github")).unwrap().map(|entry| entry.unwrap().file_name());
    let pictures: Vec<_> = files.filter(|name| name.to_string_lossy().ends_with(".svg")).collect();
    assert!(pictures.len() >= 2, "{pictures:?}");
    for name in pictures {
        assert!(pages.contains(&format!(".github/{})", name.display())), "no page shows {name:?}");
    }
}
