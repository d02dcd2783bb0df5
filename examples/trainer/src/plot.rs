//! Plots a run: loss and accuracy by epoch.

mod history;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::FontTransform;

use crate::checkpoint::Position;
use crate::train::{Epoch, Report, Step};
use history::History;
use mpienv_sharding::file::{self, naming};

/// The size of the picture in pixels, as wide as a column of text.
const SIZE: (u32, u32) = (860, 380);

/// The maximum number of bytes read from an existing picture, since the file could be anything.
const LARGEST: u64 = 16 << 20;

/// The minimum time between drawings, so that short epochs do not wait for the plot.
const REDRAW: Duration = Duration::from_secs(2);

/// The largest gap, in epochs, that a curve over epochs bridges.
const BETWEEN_EPOCHS: f64 = 1.5;

// Colors that people with any kind of color vision can tell apart (Okabe and Ito).
const TRAIN: RGBColor = RGBColor(0, 114, 178);
const TEST: RGBColor = RGBColor(213, 94, 0);
const BATCH: RGBColor = RGBColor(176, 208, 228);
const GRID: RGBColor = RGBColor(228, 228, 228);
const TEXT: RGBColor = RGBColor(40, 40, 40);

/// A plot of a run, drawn after its epochs.
#[derive(Debug)]
pub struct Plot {
    path: PathBuf,
    /// The number of steps in an epoch.
    steps: usize,
    history: History,
    drawn: Option<Instant>,
}

impl Plot {
    /// Creates a plot of a run with `steps` steps per epoch, to be drawn to `path`.
    pub fn new(path: &Path, title: String, steps: usize) -> io::Result<Plot> {
        // Fail before the training instead of after it.
        file::check(path)?;
        Ok(Plot { path: path.to_owned(), steps, history: History::new(title), drawn: None })
    }

    /// Draws everything reported so far. Does nothing before the first epoch.
    fn draw(&mut self) -> io::Result<()> {
        if self.history.epochs.is_empty() {
            return Ok(());
        }
        let named = naming(&self.path);
        let mut picture =
            self.picture().map_err(|error| named(io::Error::other(error.to_string())))?;
        self.history.keep_in(&mut picture).map_err(|error| named(error.into()))?;
        file::write(&self.path, picture.as_bytes())?;
        self.drawn = Some(Instant::now());
        Ok(())
    }

    fn picture(&self) -> Result<String, Fault> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let area = area.titled(&self.history.title, ("sans-serif", 16))?;
            let (left, right) = area.split_horizontally(SIZE.0 / 2 + 10);
            self.draw_losses(&left)?;
            self.draw_accuracy(&right)?;
            area.present()?;
        }
        Ok(text)
    }

    /// Returns a value for each epoch, placed at the epoch's end.
    fn curve(&self, value: fn(&history::EpochPoint) -> f32) -> Vec<(f64, f64)> {
        self.history.epochs.iter().map(|epoch| (epoch.end(), value(epoch).into())).collect()
    }

    /// Returns the time axis, from the first step to the end of the last epoch.
    fn time(&self) -> std::ops::Range<f64> {
        self.history.from.into()..self.history.epochs.last().map_or(1.0, history::EpochPoint::end)
    }

    fn time_name(&self) -> String {
        match self.history.from {
            0.0 => "epoch".to_owned(),
            from => format!("epoch, drawn from {}, where the run resumed", short(from.into())),
        }
    }

    fn draw_losses<'a>(&'a self, area: &Area<'a>) -> Result<(), Fault> {
        let (train, test) =
            (self.curve(|epoch| epoch.train_loss), self.curve(|epoch| epoch.test_loss));
        let losses: Vec<(f64, f64)> =
            self.history.losses.iter().map(|&(x, y)| (x.into(), y.max(1e-6).into())).collect();
        let all = || losses.iter().chain(&train).chain(&test).map(|&(_, y)| y.max(1e-6));
        // Losses fall fast, then slowly. Only a logarithmic axis shows both.
        let range = all().fold(f64::INFINITY, f64::min) * 0.85..all().fold(0.0, f64::max) * 1.15;
        let mut chart = chart(area, "loss, logarithmic").build_cartesian_2d(
            self.time(),
            range.clone().log_scale().with_key_points(logarithmic_ticks(&range)),
        )?;
        mesh(&mut chart, self.time_name(), &|y| short(*y))?;
        let widest = self.history.widest(self.steps);
        line(&mut chart, &losses, widest, BATCH.stroke_width(1), "rank 0's batches")?;
        line(&mut chart, &train, BETWEEN_EPOCHS, TRAIN.stroke_width(2), "train")?;
        line(&mut chart, &test, BETWEEN_EPOCHS, TEST.stroke_width(2), "test")?;
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    }

    fn draw_accuracy<'a>(&'a self, area: &Area<'a>) -> Result<(), Fault> {
        let curve = self.curve(|epoch| epoch.test_accuracy * 100.0);
        let (low, high) = curve
            .iter()
            .fold((100.0, 0.0), |(low, high): (f64, f64), &(_, y)| (low.min(y), high.max(y)));
        let margin = ((high - low) * 0.15).max(0.5);
        let range = (low - margin).max(0.0)..(high + margin).min(100.0);
        let last = curve.last().map_or(0.0, |&(_, y)| y);
        let mut chart = chart(area, "test accuracy, %").build_cartesian_2d(self.time(), range)?;
        mesh(&mut chart, self.time_name(), &|y| format!("{y:.1}"))?;
        let name = format!("last {last:.2} %, best {high:.2} %");
        line(&mut chart, &curve, BETWEEN_EPOCHS, TEST.stroke_width(2), &name)?;
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

type Fault = DrawingAreaErrorKind<io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'b, Y> =
    ChartContext<'b, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

fn chart<'a, 'b>(area: &'a Area<'b>, caption: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(caption, ("sans-serif", 14)).margin(8).margin_right(16);
    chart.x_label_area_size(38).y_label_area_size(46);
    chart
}

fn mesh<'b, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    chart: &mut Chart<'b, Y>,
    time: String,
    format: &dyn Fn(&f64) -> String,
) -> Result<(), Fault> {
    let small = ("sans-serif", 12).into_text_style(&SIZE);
    chart
        .configure_mesh()
        .x_desc(time)
        .x_labels(8)
        .y_labels(8)
        .max_light_lines(1)
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(TEXT)
        .label_style(small.clone())
        .axis_desc_style(small.transform(FontTransform::None))
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(format)
        .draw()?;
    Ok(())
}

/// Draws a curve. Gaps larger than `widest` interrupt it, because values are missing. A thick curve
/// has a point for each value while there are few enough to tell them apart.
fn line<'b, Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'b, Y>,
    curve: &[(f64, f64)],
    widest: f64,
    style: ShapeStyle,
    name: &str,
) -> Result<(), Fault> {
    let points = if style.stroke_width > 1 && curve.len() <= 40 { 3 } else { 0 };
    for (index, piece) in curve.chunk_by(|a, b| b.0 - a.0 <= widest).enumerate() {
        let series = LineSeries::new(piece.iter().copied(), style).point_size(points);
        let drawn = chart.draw_series(series)?;
        if index == 0 {
            drawn.label(name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], style.color.stroke_width(2))
            });
        }
    }
    Ok(())
}

fn legend<'b, Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'b, Y>,
    position: SeriesLabelPosition,
) -> Result<(), Fault> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Returns 1, 2 and 5 times each power of ten, within the range.
fn logarithmic_ticks(range: &std::ops::Range<f64>) -> Vec<f64> {
    let ticks = (-6..=6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    ticks.filter(|tick| range.contains(tick)).collect()
}

/// Formats a number on an axis without trailing zeros.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Report for Plot {
    /// Continues an existing picture of this run, keeping its curves up to `start`. Without one,
    /// the axis begins at `start` and says so.
    fn begin(&mut self, start: Position) -> io::Result<()> {
        if start != Position::default() {
            let mut before = String::new();
            let file = file::open(&self.path)
                .and_then(|file| file.take(LARGEST).read_to_string(&mut before));
            let before = file.is_ok().then_some(before);
            self.history.resume(before.as_deref(), start, self.steps);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.draw()
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.history.add_step(step, self.steps);
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.history.add_epoch(epoch);
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return Ok(());
        }
        self.draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn epoch(epoch: u32) -> Epoch {
        let loss = 0.5 / f64::from(epoch + 1);
        Epoch {
            epoch,
            train_loss: loss,
            test_loss: loss * 1.1,
            test_accuracy: 1.0 - loss / 5.0,
            samples_per_second: 1e6,
            seconds: 0.06,
        }
    }

    #[test]
    fn the_picture_is_there_after_the_first_epoch_and_whole_after_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.svg");
        let mut plot = Plot::new(&path, "linear <&> more".to_owned(), 100).unwrap();
        plot.draw().unwrap();
        assert!(!path.exists(), "a picture of nothing");
        let mut sizes = Vec::new();
        for number in 0..3 {
            for step in (0..100).step_by(10) {
                plot.step(&Step { epoch: number, step, loss: 2.3 / (1 + number) as f32 }).unwrap();
            }
            plot.epoch(&epoch(number)).unwrap();
            sizes.push(fs::read_to_string(&path).unwrap().len());
        }
        assert_eq!(sizes[0], sizes[2], "drawn for every short epoch");
        plot.draw().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
        assert!(text.len() > sizes[0]);
        for words in [
            "linear &lt;&amp;&gt; more",
            "epoch",
            "loss, logarithmic",
            "rank 0",
            "last 96.67 %, best 96.67 %",
        ] {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_epoch_and_losses_of_0_can_be_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let mut plot = Plot::new(&folder.path().join("run.svg"), String::new(), 1).unwrap();
        plot.step(&Step { epoch: 0, step: 0, loss: 0.0 }).unwrap();
        plot.epoch(&Epoch { train_loss: 0.0, test_loss: 0.0, test_accuracy: 1.0, ..epoch(0) })
            .unwrap();
        assert!(folder.path().join("run.svg").exists());
    }

    /// Draws a run up to the end of epoch 1, then resumes it at the start of epoch `at`. Returns
    /// the picture.
    fn gone_on(path: &Path, at: u32) -> String {
        for (from, to) in [(0, 2), (at, at + 2)] {
            let mut plot = Plot::new(path, "run".to_owned(), 100).unwrap();
            plot.begin(Position { epoch: from, ..Position::default() }).unwrap();
            for number in from..to {
                for step in (0..100).step_by(10) {
                    plot.step(&Step { epoch: number, step, loss: 1.0 }).unwrap();
                }
                plot.epoch(&epoch(number)).unwrap();
            }
            plot.draw().unwrap();
        }
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn curves_have_gaps_where_nothing_was_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let pieces = |name: &str, at| {
            let text = gone_on(&folder.path().join(name), at);
            // Count the pieces of each curve and its line in the legend.
            [BATCH, TRAIN, TEST].map(|RGBColor(r, g, b)| {
                let begin = format!(
                    "<polyline fill=\"none\" opacity=\"1\" stroke=\"#{r:02X}{g:02X}{b:02X}\""
                );
                text.matches(&begin).count()
            })
        };
        assert_eq!(pieces("together.svg", 2), [2, 2, 4]);
        assert_eq!(pieces("apart.svg", 7), [3, 3, 6]);
    }

    #[test]
    fn a_picture_that_begins_late_says_so_on_its_axis() {
        let folder = tempfile::tempdir().unwrap();
        let mut plot = Plot::new(&folder.path().join("run.svg"), String::new(), 100).unwrap();
        plot.begin(Position { epoch: 3, step: 50, ..Position::default() }).unwrap();
        plot.epoch(&epoch(3)).unwrap();
        let text = fs::read_to_string(folder.path().join("run.svg")).unwrap();
        assert_eq!(
            text.matches("epoch, drawn from 3.5, where the run resumed").count(),
            2,
            "{text}"
        );
    }

    #[test]
    fn a_picture_that_cannot_be_written_is_named_before_the_training() {
        let error = Plot::new(Path::new("/no/such/folder/run.svg"), String::new(), 1)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/no/such/folder/run.svg: No such file or directory"), "{error}");
    }
}
