//! Ranks as reports list them: `0-3,7`.

/// Returns the first and the last rank of each run of consecutive ranks.
pub fn runs(ranks: &[u32]) -> Vec<(u32, u32)> {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
}

/// Formats sorted numbers as `0-3,7`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    list(&runs(numbers), ",")
}

/// Formats runs as `0-3` and `7`, with this text between them.
pub fn list<'a>(runs: impl IntoIterator<Item = &'a (u32, u32)>, between: &str) -> String {
    let texts = runs.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(between)
}
