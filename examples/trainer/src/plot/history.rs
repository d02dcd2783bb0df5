//! The values in a plot. They are stored in the picture, so that a resumed run can continue it.

use serde::{Deserialize, Serialize};

use crate::checkpoint::Position;
use crate::train::{self, Step};
use mpienv_sharding::file;

/// The maximum number of step losses. When it is reached, each pair of neighbors is merged into its
/// mean.
const POINTS: usize = 1024;

/// The tags around the values in a picture, which follow their SHA-256.
const TAGS: [&str; 2] = ["<metadata>", "</metadata>"];

/// The reported values of a run with their times, in epochs from 0.
///
/// The values are f32, which survives the round trip through JSON. A resumed run therefore draws
/// the same picture as an uninterrupted one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct History {
    /// The title of the picture, which identifies the run.
    pub(super) title: String,
    /// The time at which the history begins.
    pub(super) from: f32,
    /// The number of reported losses merged into each of `losses`.
    stride: usize,
    /// The losses of rank 0's batches, each with its time.
    pub(super) losses: Vec<(f32, f32)>,
    pub(super) epochs: Vec<EpochPoint>,
    /// The sums of the times and losses that are not merged yet, and their number.
    #[serde(skip)]
    rest: (f64, f64, usize),
}

/// The values of an epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EpochPoint {
    epoch: u32,
    pub(super) train_loss: f32,
    pub(super) test_loss: f32,
    pub(super) test_accuracy: f32,
}

impl EpochPoint {
    /// The time at which the epoch ended.
    pub(super) fn end(&self) -> f64 {
        f64::from(self.epoch) + 1.0
    }
}

impl History {
    pub(super) fn new(title: String) -> History {
        let losses = Vec::with_capacity(POINTS);
        History { title, from: 0.0, stride: 1, losses, epochs: Vec::new(), rest: (0.0, 0.0, 0) }
    }

    /// Parses the history in a picture if it belongs to the run with this title and is as it was
    /// written.
    fn from_picture(picture: &str, title: &str) -> Option<History> {
        let [open, close] = TAGS;
        let (kept, _) = picture.rsplit_once(open)?.1.split_once(close)?;
        let (written, kept) = kept.split_once(' ')?;
        if written != file::sha256(kept.as_bytes()) {
            return None;
        }
        serde_json::from_str(kept)
            .ok()
            .filter(|history: &History| history.title == title && history.can_be_drawn())
    }

    /// Returns whether the values are valid. The file may come from another program.
    fn can_be_drawn(&self) -> bool {
        let of_epoch =
            |epoch: &EpochPoint| [epoch.train_loss, epoch.test_loss, epoch.test_accuracy];
        let losses = self.losses.iter().flat_map(|&(x, y)| [x, y]);
        let mut numbers = losses.chain(self.epochs.iter().flat_map(of_epoch)).chain([self.from]);
        numbers.all(|number| number.is_finite() && number >= 0.0)
            && u32::try_from(self.stride).is_ok_and(|stride| stride > 0)
            && self.epochs.iter().all(|epoch| epoch.end() > self.from.into())
    }

    /// Inserts this history into a picture.
    pub(super) fn keep_in(&self, picture: &mut String) -> serde_json::Result<()> {
        // These characters occur only inside JSON strings, where they can be escaped.
        let kept = serde_json::to_string(self)?;
        let kept = kept.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
        let [open, close] = TAGS;
        let end = picture.rfind("</svg>").unwrap_or(picture.len());
        picture
            .insert_str(end, &format!("{open}{} {kept}{close}\n", file::sha256(kept.as_bytes())));
        Ok(())
    }

    /// Resumes at `position` with this run's earlier values from `picture`, or begins there if
    /// there are none.
    pub(super) fn resume(&mut self, picture: Option<&str>, position: Position, steps: usize) {
        let time = time(position.epoch, position.step as f64, steps);
        let before = picture.and_then(|picture| History::from_picture(picture, &self.title));
        if let Some(mut before) = before.filter(|before| before.from < time) {
            before.losses.retain(|&(x, _)| x < time);
            before.epochs.retain(|epoch| epoch.epoch < position.epoch);
            *self = before;
        } else {
            self.from = time;
        }
    }

    /// Adds a step of a run with `steps` steps per epoch.
    pub(super) fn add_step(&mut self, step: &Step, steps: usize) {
        self.add_loss(time(step.epoch, step.step as f64, steps), step.loss);
    }

    fn add_loss(&mut self, x: f32, y: f32) {
        let (x_sum, y_sum, count) = &mut self.rest;
        *x_sum += f64::from(x);
        *y_sum += f64::from(y);
        *count += 1;
        if *count < self.stride {
            return;
        }
        let mean = |sum: f64| (sum / *count as f64) as f32;
        self.losses.push((mean(*x_sum), mean(*y_sum)));
        self.rest = (0.0, 0.0, 0);
        if self.losses.len() >= POINTS {
            let pairs = self.losses.as_chunks::<2>().0;
            self.losses =
                pairs.iter().map(|[a, b]| (a.0.midpoint(b.0), a.1.midpoint(b.1))).collect();
            self.stride *= 2;
        }
    }

    /// Adds the summary of an epoch.
    pub(super) fn add_epoch(&mut self, epoch: &train::Epoch) {
        let [train_loss, test_loss, test_accuracy] =
            [epoch.train_loss, epoch.test_loss, epoch.test_accuracy].map(|value| value as f32);
        self.epochs.push(EpochPoint { epoch: epoch.epoch, train_loss, test_loss, test_accuracy });
    }

    /// The largest gap between neighbors in `losses` that does not mean that steps are missing.
    pub(super) fn widest(&self, steps: usize) -> f64 {
        // A mean is shifted by up to half its width, and one mean may be missing where the run
        // resumed.
        3.0 * (self.stride * train::REPORT_EVERY) as f64 / steps as f64
    }
}

fn time(epoch: u32, step: f64, steps: usize) -> f32 {
    (f64::from(epoch) + step / steps as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLE: &str = "linear <&> \"more\"";
    const STEPS: usize = 100;

    fn history(epochs: u32) -> History {
        let mut history = History::new(TITLE.to_owned());
        add(&mut history, 0, epochs);
        history
    }

    fn add(history: &mut History, from: u32, to: u32) {
        for epoch in from..to {
            for step in (0..STEPS).step_by(10) {
                history.add_step(&Step { epoch, step, loss: 2.3 / (1.0 + epoch as f32) }, STEPS);
            }
            let loss = 0.1 / f64::from(epoch + 1);
            let (samples_per_second, seconds) = (1e6, 0.06);
            let [train_loss, test_loss, test_accuracy] = [loss, loss * 1.1, 1.0 - loss];
            let epoch = train::Epoch {
                epoch,
                train_loss,
                test_loss,
                test_accuracy,
                samples_per_second,
                seconds,
            };
            history.add_epoch(&epoch);
        }
    }

    fn picture(history: &History) -> String {
        let mut picture = "<svg>\n</svg>\n".to_owned();
        history.keep_in(&mut picture).unwrap();
        picture
    }

    fn resumed(picture: Option<&str>, epoch: u32, step: u64) -> History {
        let mut history = History::new(TITLE.to_owned());
        history.resume(picture, Position { epoch, step, ..Position::default() }, STEPS);
        history
    }

    #[test]
    fn a_run_that_goes_on_has_the_history_of_one_that_was_not_stopped() {
        let whole = picture(&history(5));
        assert_eq!(whole.lines().last(), Some("</svg>"));
        assert_eq!(whole.matches(['<', '>']).count(), 8, "{whole}");
        let mut rest = resumed(Some(&picture(&history(3))), 3, 0);
        add(&mut rest, 3, 5);
        assert_eq!(picture(&rest), whole);
    }

    #[test]
    fn what_comes_after_the_checkpoint_is_left_out() {
        let history = resumed(Some(&picture(&history(5))), 2, 35);
        assert_eq!((history.from, history.epochs.len(), history.losses.len()), (0.0, 2, 24));
        assert_eq!(history.losses.last().unwrap().0, 2.3);
    }

    #[test]
    fn without_a_picture_of_the_run_the_history_begins_where_the_run_goes_on() {
        let mut other = history(2);
        other.title.push('!');
        for picture in [
            None,
            Some(""),
            Some("<svg></svg>"),
            Some("<metadata>{}</metadata>"),
            Some(&*picture(&other)),
        ] {
            let history = resumed(picture, 2, 50);
            assert_eq!(
                (history.from, history.epochs.len(), history.losses.len()),
                (2.5, 0, 0),
                "{picture:?}"
            );
        }
        assert_eq!(resumed(Some(&picture(&history(2))), 0, 0).losses.len(), 0);
        // Values that no plot contains.
        for (right, wrong) in
            [("0.1,", "1e300,"), ("0.1,", "-1,"), ("\"stride\":1", "\"stride\":0"), ("[[", "[[]")]
        {
            let picture = picture(&history(2));
            assert!(picture.contains(right));
            let picture = picture.replacen(right, wrong, 1);
            assert_eq!(resumed(Some(&picture), 2, 50).from, 2.5, "{wrong}");
            assert_eq!(resumed(Some(&sealed(&picture)), 2, 50).from, 2.5, "{wrong}");
        }
    }

    /// A picture whose digest is that of the values that it has now.
    fn sealed(picture: &str) -> String {
        let [open, close] = TAGS;
        let (start, rest) = picture.split_once(open).unwrap();
        let (kept, end) = rest.split_once(close).unwrap();
        let (_, kept) = kept.split_once(' ').unwrap();
        format!("{start}{open}{} {kept}{close}{end}", file::sha256(kept.as_bytes()))
    }

    #[test]
    fn any_changed_byte_of_the_values_is_noticed() {
        let whole = picture(&history(2));
        assert_eq!(sealed(&whole), whole);
        let [open, close] = TAGS.map(|tag| whole.find(tag).unwrap());
        for at in open..close {
            let mut changed = whole.clone().into_bytes();
            changed[at] ^= 1 + (at % 7) as u8;
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(resumed(Some(&changed), 2, 50).from, 2.5, "{at}");
        }
    }

    #[test]
    fn a_long_run_keeps_few_points_and_their_means() {
        let mut history = History::new(String::new());
        (0..100_000_u32).for_each(|step| history.add_loss(step as f32, (step % 2) as f32));
        assert!((POINTS / 2..POINTS).contains(&history.losses.len()));
        assert!(history.losses.iter().all(|&(_, y)| y == 0.5));
        assert!(history.losses.is_sorted_by(|a, b| a.0 < b.0));
        let apart = history
            .losses
            .windows(2)
            .map(|pair| f64::from(pair[1].0 - pair[0].0))
            .fold(0.0, f64::max);
        // With this many steps per epoch, reported losses are 1 apart.
        assert!(apart * 1.5 < history.widest(train::REPORT_EVERY), "{apart}");
    }
}
