//! The files that a run left in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every file below a folder, with its bytes.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(
                files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)),
            );
        } else {
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}
