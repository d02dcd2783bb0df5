//! What MindSpore's quick start prints: 8 ranks with `--lr 0.4 --init mindspore-1.x`.

const RANKS: usize = 8;
/// 5 epochs of 4 steps.
const STEPS: usize = 20;
const LOSSES: [(&str, f64); 5] = [
    ("epoch: 3 step: 2, loss is ", 0.367_389_976_978_302),
    ("epoch: 3 step: 3, loss is ", 0.353_831_142_187_118_53),
    ("epoch: 3 step: 4, loss is ", 0.331_232_994_794_845_6),
    ("epoch: 4 step: 1, loss is ", 0.295_515_775_680_542),
    ("epoch: 4 step: 2, loss is ", 0.244_013_443_589_210_5),
];

/// Asserts that all ranks printed all lines, with the published losses.
#[track_caller]
pub fn assert_published(text: &str) {
    assert_eq!(text.lines().count(), RANKS * STEPS, "{text}");
    for (moment, expected) in LOSSES {
        let losses = text.lines().filter_map(|line| line.strip_prefix(moment));
        let found: Vec<f64> = losses.map(|loss| loss.parse().unwrap()).collect();
        assert_eq!(found.len(), RANKS, "{moment}: {text}");
        assert!(found.iter().all(|loss| (loss - expected).abs() < 1e-6), "{moment}: {found:?}");
    }
}
