//! What one measurement of a check found out, and how its text shows numbers and tables.

use std::collections::BTreeMap;

use mpienv_core::seam::ranges;
use serde::Serialize;
use serde_json::Value;

use crate::Finding;

/// The result of one measurement: of the network, of the cores, or of the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Measurement {
    /// What `--json` prints.
    pub report: Value,
    /// What is printed for people, without the findings.
    #[serde(skip)]
    pub text: String,
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// The hosts that the findings blame.
    #[serde(skip)]
    pub bad_hosts: Vec<String>,
}

/// A number with three digits that count.
pub(super) fn figure(value: f64) -> String {
    // Without a logarithm, for which alone each start of the command would load libm.
    let larger = [100.0, 10.0, 1.0, 0.1, 0.01, 0.001].iter().filter(|&&power| value.abs() < power);
    let digits = larger.count();
    format!("{value:.digits$}")
}

/// A value, or a dash if it is not known.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// A number with three digits that count, or a dash.
pub(super) fn figure_or_dash(value: Option<f64>) -> String {
    or_dash(value.map(figure))
}

/// The median. Of an even number of values, the lower or the higher one in the middle.
pub(super) fn median(mut values: Vec<f64>, is_lower: bool) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let below = values.len().saturating_sub(usize::from(is_lower));
    values.get(below / 2).copied()
}

/// The widest column. A wider one makes the formatting panic.
pub(crate) const WIDEST: usize = u16::MAX as usize;

/// Aligns columns to the left, and those of numbers, which are all but the first one, to the right.
pub(crate) fn table(rows: &[Vec<String>], has_numbers: bool) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default().min(WIDEST)
    };
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match has_numbers && column > 0 {
            true => format!("{cell:>0$}", width(column)),
            false => format!("{cell:0$}", width(column)),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    text
}

/// Groups values, most often ranks, by what they have in common, in the order of each group's first
/// value.
pub(crate) fn grouped<T, K: Ord + Clone>(
    values: impl IntoIterator<Item = (T, K)>,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    let mut places = BTreeMap::new();
    for (value, key) in values {
        let at = *places.entry(key.clone()).or_insert(groups.len());
        if at == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[at].1.push(value);
    }
    groups
}

/// Names ranks: `rank 4`, or `ranks 0-3`.
pub(crate) fn named(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", ranges(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let figures = [123.4, 12.34, 1.234, 0.1234, 0.01234, 0.0].map(figure);
        assert_eq!(figures, ["123", "12.3", "1.23", "0.123", "0.0123", "0.000000"]);
    }
}
