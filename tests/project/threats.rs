//! Each cell of the guide's table of threats names tests, and they exist.

use std::fs;
use std::path::Path;

/// The sources of the tests that the table may name.
fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let files = ["attacks", "attacks_on_launches", "check", "rendezvous", "rendezvous/strangers", "strangers", "token"];
    files.map(|file| fs::read_to_string(folder.join(file).with_extension("rs")).unwrap()).concat()
}

#[test]
fn every_cell_of_the_threats_names_tests_that_exist() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/security.md")).unwrap();
    let sources = sources();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() >= 12, "{}", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 3, "{row}");
        for cell in &cells[1..] {
            let (_, tests) = cell.rsplit_once(": `").unwrap_or_else(|| panic!("{cell} names no test"));
            for name in tests.trim_end_matches('`').split("`, `") {
                let at = sources.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("no test {name}"));
                assert!(sources[..at].trim_end().ends_with("#[test]"), "{name} is not a test");
            }
        }
    }
}
