//! Each cell of the guide's tables of threats names tests, and these tests exist.

use std::fs;
use std::path::Path;

/// The sources of the tests that the tables may name.
fn sources() -> String {
    let files = [
        "src/collective/mpi/watch/tests",
        "src/collective/tcp/handshake",
        "src/collective/tcp/seal",
        "src/rendezvous/auth",
        "tests/it/attacks",
        "tests/it/attacks_on_launches",
        "tests/it/check",
        "tests/it/floods",
        "tests/it/munge",
        "tests/it/rendezvous",
        "tests/it/rendezvous/strangers",
        "tests/it/strangers",
        "tests/it/strangers/memory",
        "tests/it/strangers/rank_0",
        "tests/it/token",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    files.map(|file| fs::read_to_string(folder.join(file).with_extension("rs")).unwrap()).concat()
}

#[test]
fn every_cell_of_the_threats_names_tests_that_exist() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/security.md"))
            .unwrap();
    let sources = sources();
    let is_of_threats = |block: &&str| {
        ["| attacker |", "| another user |"].iter().any(|head| block.starts_with(head))
    };
    let tables = page.split("\n\n").filter(is_of_threats);
    let columns = |row: &str| row.matches('|').count() - 1;
    let rows: Vec<(&str, usize)> = tables
        .flat_map(|table| {
            table.lines().skip(2).map(|row| (row, columns(table.lines().next().unwrap())))
        })
        .collect();
    assert!(rows.len() >= 25, "{}", rows.len());
    for (row, columns) in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), columns, "{row}");
        for cell in &cells[1..] {
            let (_, tests) =
                cell.rsplit_once(": `").unwrap_or_else(|| panic!("{cell} names no test"));
            for name in tests.trim_end_matches('`').split("`, `") {
                let at = sources
                    .find(&format!("fn {name}("))
                    .unwrap_or_else(|| panic!("no test {name}"));
                assert!(sources[..at].trim_end().ends_with("#[test]"), "{name} is not a test");
            }
        }
    }
}
