//! The curves of a run as a picture: loss and accuracy by epoch.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::FontTransform;

use crate::train::{Epoch, Report, Step};
use crate::whole_file;

/// As wide as a page of text shows it.
const SIZE: (u32, u32) = (860, 380);

/// How often the picture is drawn anew at most: a short epoch must not wait for it.
const REDRAW: Duration = Duration::from_secs(2);

/// How many losses of steps are kept; of more, neighbours are joined to their mean.
const POINTS: usize = 1024;

// Colours that people with any kind of colour vision tell apart (Okabe and Ito).
const TRAIN: RGBColor = RGBColor(0, 114, 178);
const TEST: RGBColor = RGBColor(213, 94, 0);
const BATCH: RGBColor = RGBColor(176, 208, 228);
const GRID: RGBColor = RGBColor(228, 228, 228);
const TEXT: RGBColor = RGBColor(40, 40, 40);

/// A picture of a run, drawn after its epochs.
#[derive(Debug)]
pub struct Plot {
    path: PathBuf,
    title: String,
    /// How many steps an epoch has.
    steps: usize,
    losses: Losses,
    epochs: Vec<Epoch>,
    drawn: Option<Instant>,
}

impl Plot {
    /// A picture that will be at `path`, of a run with `steps` steps an epoch. Nothing is drawn yet.
    ///
    /// # Errors
    /// When no file can be written there; the error names it.
    pub fn new(path: &Path, title: String, steps: usize) -> io::Result<Plot> {
        // Before the training, not after it.
        let probe = whole_file::beside(path, &format!(".{}.part", std::process::id()));
        std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)).map_err(|error| naming(path, &error))?;
        let losses = Losses { points: Vec::with_capacity(POINTS), stride: 1, sum: (0.0, 0.0), count: 0 };
        Ok(Plot { path: path.to_owned(), title, steps, losses, epochs: Vec::new(), drawn: None })
    }

    /// Draws all that was reported; without an epoch there is no picture.
    ///
    /// # Errors
    /// When it cannot be written; the error names it.
    pub fn draw(&mut self) -> io::Result<()> {
        if self.epochs.is_empty() {
            return Ok(());
        }
        let picture = self.picture().map_err(|error| io::Error::other(format!("{}: {error}", self.path.display())))?;
        whole_file::write(&self.path, picture.as_bytes()).map_err(|error| naming(&self.path, &error))?;
        self.drawn = Some(Instant::now());
        Ok(())
    }

    fn picture(&self) -> Result<String, Fault> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let area = area.titled(&self.title, ("sans-serif", 16))?;
            let (left, right) = area.split_horizontally(SIZE.0 / 2 + 10);
            self.draw_losses(&left)?;
            self.draw_accuracy(&right)?;
            area.present()?;
        }
        Ok(text)
    }

    /// The epochs' values, each where the epoch ends.
    fn curve(&self, value: fn(&Epoch) -> f64) -> Vec<(f64, f64)> {
        self.epochs.iter().map(|epoch| (f64::from(epoch.epoch) + 1.0, value(epoch))).collect()
    }

    /// From 0 to the end of the last epoch.
    fn time(&self) -> std::ops::Range<f64> {
        0.0..self.epochs.last().map_or(1.0, |epoch| f64::from(epoch.epoch) + 1.0)
    }

    fn draw_losses<'a>(&'a self, area: &Area<'a>) -> Result<(), Fault> {
        let (train, test) = (self.curve(|epoch| epoch.train_loss), self.curve(|epoch| epoch.test_loss));
        let all = || self.losses.points.iter().chain(&train).chain(&test).map(|&(_, y)| y.max(1e-6));
        // Losses fall fast, then slowly: only a logarithmic axis shows both.
        let range = all().fold(f64::INFINITY, f64::min) * 0.85..all().fold(0.0, f64::max) * 1.15;
        let mut chart = chart(area, "loss, logarithmic")
            .build_cartesian_2d(self.time(), range.clone().log_scale().with_key_points(logarithmic_ticks(&range)))?;
        mesh(&mut chart, &|y| short(*y))?;
        chart
            .draw_series(LineSeries::new(self.losses.points.iter().map(|&(x, y)| (x, y.max(1e-6))), &BATCH))?
            .label("rank 0's batches")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BATCH.stroke_width(2)));
        line(&mut chart, train, TRAIN, "train")?;
        line(&mut chart, test, TEST, "test")?;
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    }

    fn draw_accuracy<'a>(&'a self, area: &Area<'a>) -> Result<(), Fault> {
        let curve = self.curve(|epoch| epoch.test_accuracy * 100.0);
        let (low, high) = curve.iter().fold((100.0, 0.0), |(low, high): (f64, f64), &(_, y)| (low.min(y), high.max(y)));
        let margin = ((high - low) * 0.15).max(0.5);
        let range = (low - margin).max(0.0)..(high + margin).min(100.0);
        let last = curve.last().map_or(0.0, |&(_, y)| y);
        let mut chart = chart(area, "test accuracy, %").build_cartesian_2d(self.time(), range)?;
        mesh(&mut chart, &|y| format!("{y:.1}"))?;
        line(&mut chart, curve, TEST, &format!("last {last:.2} %, best {high:.2} %"))?;
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

type Fault = DrawingAreaErrorKind<io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'b, Y> = ChartContext<'b, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

fn chart<'a, 'b>(area: &'a Area<'b>, caption: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(caption, ("sans-serif", 14)).margin(8).margin_right(16);
    chart.x_label_area_size(38).y_label_area_size(46);
    chart
}

fn mesh<'b, Y>(chart: &mut Chart<'b, Y>, format: &dyn Fn(&f64) -> String) -> Result<(), Fault>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let small = ("sans-serif", 12).into_text_style(&SIZE);
    chart
        .configure_mesh()
        .x_desc("epoch")
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

/// A curve with a point for each value, as long as they can be told apart.
fn line<'b, Y>(chart: &mut Chart<'b, Y>, curve: Vec<(f64, f64)>, colour: RGBColor, label: &str) -> Result<(), Fault>
where
    Y: Ranged<ValueType = f64>,
{
    let points = if curve.len() <= 40 { 3 } else { 0 };
    chart
        .draw_series(LineSeries::new(curve, colour.stroke_width(2)).point_size(points))?
        .label(label)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    Ok(())
}

fn legend<'b, Y>(chart: &mut Chart<'b, Y>, position: SeriesLabelPosition) -> Result<(), Fault>
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// 1, 2 and 5 of each power of ten in the range.
fn logarithmic_ticks(range: &std::ops::Range<f64>) -> Vec<f64> {
    let ticks = (-6..=6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    ticks.filter(|tick| range.contains(tick)).collect()
}

/// A number of an axis, without zeros that say nothing.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The losses of steps: at most [`POINTS`], each the mean of `stride` reported ones.
#[derive(Debug)]
struct Losses {
    points: Vec<(f64, f64)>,
    stride: usize,
    sum: (f64, f64),
    count: usize,
}

impl Losses {
    fn add(&mut self, x: f64, y: f64) {
        self.sum = (self.sum.0 + x, self.sum.1 + y);
        self.count += 1;
        if self.count < self.stride {
            return;
        }
        let count = self.count as f64;
        self.points.push((self.sum.0 / count, self.sum.1 / count));
        (self.sum, self.count) = ((0.0, 0.0), 0);
        if self.points.len() == POINTS {
            let pairs = self.points.as_chunks::<2>().0;
            self.points = pairs.iter().map(|[a, b]| ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0)).collect();
            self.stride *= 2;
        }
    }
}

impl Report for Plot {
    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.losses.add(f64::from(step.epoch) + step.step as f64 / self.steps as f64, step.loss.into());
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.epochs.push(*epoch);
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return Ok(());
        }
        self.draw()
    }
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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
        for words in ["linear &lt;&amp;&gt; more", "epoch", "loss, logarithmic", "rank 0", "last 96.67 %, best 96.67 %"]
        {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_epoch_and_losses_of_0_can_be_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let mut plot = Plot::new(&folder.path().join("run.svg"), String::new(), 1).unwrap();
        plot.step(&Step { epoch: 0, step: 0, loss: 0.0 }).unwrap();
        plot.epoch(&Epoch { train_loss: 0.0, test_loss: 0.0, test_accuracy: 1.0, ..epoch(0) }).unwrap();
        assert!(folder.path().join("run.svg").exists());
    }

    #[test]
    fn a_long_run_keeps_few_points_and_their_means() {
        let mut losses = Losses { points: Vec::new(), stride: 1, sum: (0.0, 0.0), count: 0 };
        (0..100_000).for_each(|step| losses.add(f64::from(step), f64::from(step % 2)));
        assert!((POINTS / 2..POINTS).contains(&losses.points.len()));
        assert!(losses.points.iter().all(|&(_, y)| y == 0.5));
        assert!(losses.points.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn a_picture_that_cannot_be_written_is_named_before_the_training() {
        let error = Plot::new(Path::new("/no/such/folder/run.svg"), String::new(), 1).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/folder/run.svg: No such file or directory"), "{error}");
    }
}
