//! The number of processes, as launchers call it.

use std::ffi::{OsStr, OsString};

/// The options.
const NAMES: [&str; 7] =
    ["-n", "-np", "--np", "--nprocs", "--ntasks", "--num-processes", "--num_processes"];

/// Returns the number with which the words start, and how many words it takes: `-n 2`, `-n2` or
/// `-n=2`.
pub(super) fn first(words: &[OsString]) -> Option<(&OsStr, usize)> {
    let (word, rest) = words.split_first()?;
    if NAMES.iter().any(|name| word == name) {
        let value = rest.first().filter(|value| !value.as_encoded_bytes().starts_with(b"-"))?;
        return Some((value, 2));
    }
    let joined = |name: &&str| {
        let value = word.to_str()?.strip_prefix(name)?;
        let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        value.strip_prefix('=').or(number).filter(|value| !value.is_empty())
    };
    NAMES.iter().find_map(joined).map(|value| (OsStr::new(value), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_processes_is_known_in_every_spelling() {
        for (line, expected) in [
            ("-n 2 x", Some(("2", 2))),
            ("-n auto", Some(("auto", 2))),
            ("-n2", Some(("2", 1))),
            ("-n=2", Some(("2", 1))),
            ("-np4 x", Some(("4", 1))),
            ("--ntasks=8", Some(("8", 1))),
            ("-n", None),
            ("-n -x", None),
            ("-n=", None),
            ("-nx", None),
            ("x -n 2", None),
            ("--hosts 2", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(
                first(&words),
                expected.map(|(value, used)| (OsStr::new(value), used)),
                "{line}"
            );
        }
    }
}
