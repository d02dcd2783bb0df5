//! Draws digits that look handwritten: randomly distorted strokes with noise.

use std::f64::consts::PI;

use super::{CLASSES, Dataset, Datasets, PIXELS, SIDE};
use mpienv_sharding::random::{Purpose, Stream};

/// The number of training digits.
pub const TRAIN: usize = 12_000;

/// The number of test digits.
pub const TEST: usize = 2_000;

/// A fixed seed, so that the digits are always the same.
const SEED: u64 = 28;

/// Half the height of an undistorted digit, in pixels.
const HALF_HEIGHT: f64 = 8.0;

/// Draws the training and the test set. Each digit occurs equally often; order and images are
/// always the same.
pub fn draw() -> Datasets {
    let mut labels: Vec<u8> = (0..TRAIN + TEST).map(|index| (index % CLASSES) as u8).collect();
    let mut order = Stream::new(SEED, Purpose::Epoch(0));
    let (train, test) = labels.split_at_mut(TRAIN);
    order.shuffle(train);
    order.shuffle(test);
    let mut images = vec![0; labels.len() * PIXELS];
    for ((number, image), &label) in (0..).zip(images.as_chunks_mut::<PIXELS>().0).zip(&labels) {
        draw_digit(label, &mut Stream::new(SEED, Purpose::Digit(number)), image);
    }
    let test =
        Dataset { images: images.split_off(TRAIN * PIXELS), labels: labels.split_off(TRAIN) };
    Datasets { train: Dataset { images, labels }, test }
}

/// A position relative to the middle of the digit, as (right, down). 1 is half the digit's height.
type Point = (f64, f64);

/// The strokes of each digit, as a pen would draw them.
#[rustfmt::skip]
const STROKES: [&[&[Point]]; CLASSES] = [
    &[&[
        (0.0, -1.0), (-0.45, -0.75), (-0.6, 0.0), (-0.45, 0.75), (0.0, 1.0), (0.45, 0.75), (0.6, 0.0), (0.45, -0.75),
        (0.0, -1.0),
    ]],
    &[&[(-0.35, -0.6), (0.05, -1.0), (0.05, 1.0)]],
    &[&[
        (-0.55, -0.6), (-0.3, -0.95), (0.15, -1.0), (0.5, -0.7), (0.5, -0.35), (0.1, 0.2), (-0.6, 1.0), (0.6, 1.0),
    ]],
    &[&[
        (-0.5, -0.8), (-0.1, -1.0), (0.35, -0.9), (0.5, -0.55), (0.3, -0.15), (-0.1, -0.05), (0.35, 0.1), (0.55, 0.5),
        (0.35, 0.9), (-0.1, 1.0), (-0.55, 0.8),
    ]],
    &[&[(0.15, -1.0), (-0.6, 0.3), (0.65, 0.3)], &[(0.3, -0.3), (0.3, 1.0)]],
    &[&[
        (0.5, -1.0), (-0.4, -1.0), (-0.5, -0.1), (0.0, -0.25), (0.45, 0.0), (0.55, 0.4), (0.3, 0.9), (-0.1, 1.0),
        (-0.55, 0.8),
    ]],
    &[&[
        (0.4, -1.0), (-0.15, -0.7), (-0.5, 0.0), (-0.5, 0.6), (-0.15, 1.0), (0.3, 0.95), (0.55, 0.55), (0.35, 0.1),
        (-0.1, 0.05), (-0.5, 0.4),
    ]],
    &[&[(-0.55, -1.0), (0.6, -1.0), (0.2, -0.2), (-0.1, 1.0)]],
    &[&[
        (0.0, -0.05), (-0.4, -0.3), (-0.4, -0.8), (0.0, -1.0), (0.4, -0.8), (0.4, -0.3), (0.0, -0.05), (-0.5, 0.3),
        (-0.5, 0.8), (0.0, 1.0), (0.5, 0.8), (0.5, 0.3), (0.0, -0.05),
    ]],
    &[&[
        (0.5, -0.4), (0.1, -0.05), (-0.35, -0.15), (-0.5, -0.55), (-0.25, -0.95), (0.2, -1.0), (0.5, -0.7),
        (0.5, 0.0), (0.3, 0.6), (-0.1, 1.0),
    ]],
];

/// How a digit is distorted.
struct Hand {
    /// Rotation, shear and scale.
    matrix: [[f64; 2]; 2],
    /// The middle of the digit, in pixels.
    middle: Point,
    /// Half the width of the pen, in pixels.
    pen: f64,
    /// The value of the darkest pixel; at most 255.
    ink: f64,
    /// The largest noise, on the same scale.
    noise: f64,
}

impl Hand {
    fn any(random: &mut Stream) -> Hand {
        let angle = random.between(-PI / 12.0, PI / 12.0);
        let shear = random.between(-0.25, 0.25);
        let (high, wide) = (random.between(0.8, 1.15), random.between(0.75, 1.25));
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let (wide, high) = (HALF_HEIGHT * wide, HALF_HEIGHT * high);
        let centre = (SIDE - 1) as f64 / 2.0;
        let right = [cos * wide, (shear * cos - sin) * high];
        let down = [sin * wide, (shear * sin + cos) * high];
        Hand {
            matrix: [right, down],
            middle: (centre + random.between(-2.5, 2.5), centre + random.between(-2.5, 2.5)),
            pen: random.between(0.7, 1.6),
            ink: random.between(170.0, 255.0),
            noise: random.between(10.0, 70.0),
        }
    }

    /// Maps a point of the undistorted digit to pixels, with a small random error.
    fn put(&self, (x, y): Point, random: &mut Stream) -> Point {
        let (x, y) = (x + random.between(-0.09, 0.09), y + random.between(-0.09, 0.09));
        let [[a, b], [c, d]] = self.matrix;
        (self.middle.0 + a * x + b * y, self.middle.1 + c * x + d * y)
    }
}

fn draw_digit(label: u8, random: &mut Stream, image: &mut [u8]) {
    let hand = Hand::any(random);
    let mut cover = [0.0; PIXELS];
    for stroke in STROKES[usize::from(label)] {
        let points: Vec<_> = stroke.iter().map(|&point| hand.put(point, random)).collect();
        for ends in points.windows(2) {
            draw_segment(ends[0], ends[1], hand.pen, &mut cover);
        }
    }
    random.bytes(image);
    for (pixel, cover) in image.iter_mut().zip(cover) {
        // Noise has mean 0, so about half of the background is clamped to 0.
        let noise = (f64::from(*pixel) - 127.5) / 127.5 * hand.noise;
        *pixel = (cover * hand.ink + noise).clamp(0.0, 255.0) as u8;
    }
}

/// Covers the pixels within `pen` of a line segment. Pixels at the edge are partly covered.
fn draw_segment(from: Point, to: Point, pen: f64, cover: &mut [f64; PIXELS]) {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = (dx * dx + dy * dy).max(1e-9);
    let reach = pen + 0.5;
    let pixels = |a: f64, b: f64| {
        let last = (SIDE - 1) as f64;
        let (first, end) = (
            (a.min(b) - reach).ceil().clamp(0.0, last),
            (a.max(b) + reach).floor().clamp(0.0, last),
        );
        first as usize..=end as usize
    };
    for y in pixels(from.1, to.1) {
        for x in pixels(from.0, to.0) {
            let (px, py) = (x as f64 - from.0, y as f64 - from.1);
            let along = ((px * dx + py * dy) / length).clamp(0.0, 1.0);
            let (ox, oy) = (px - along * dx, py - along * dy);
            let value = (reach - (ox * ox + oy * oy).sqrt()).clamp(0.0, 1.0);
            let pixel = &mut cover[y * SIDE + x];
            *pixel = pixel.max(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_always_the_same() {
        let digits = draw();
        assert_eq!(digits, draw());
        // A checksum of all digits. If it changes, so do all curves that users have seen.
        let sum = |data: &Dataset| {
            data.images
                .iter()
                .chain(&data.labels)
                .fold(0u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte))
        };
        assert_eq!(
            (sum(&digits.train), sum(&digits.test)),
            (17_206_733_571_790_539_382, 3_406_027_111_832_206_619)
        );
    }

    #[test]
    fn there_are_as_many_of_each_digit_in_random_order() {
        let digits = draw();
        for (data, count) in [(&digits.train, TRAIN), (&digits.test, TEST)] {
            assert_eq!(data.count(), count);
            for class in 0..10 {
                assert_eq!(data.labels.iter().filter(|&&label| label == class).count(), count / 10);
            }
            let in_order =
                data.labels.windows(2).filter(|pair| pair[1] == (pair[0] + 1) % 10).count();
            assert!(in_order < count / 5, "{in_order}");
        }
    }

    #[test]
    fn no_two_digits_are_the_same() {
        let digits = draw();
        let mut images: Vec<&[u8]> =
            digits.train.images.chunks(PIXELS).chain(digits.test.images.chunks(PIXELS)).collect();
        images.sort_unstable();
        images.dedup();
        assert_eq!(images.len(), TRAIN + TEST);
    }

    #[test]
    fn every_digit_is_ink_on_a_background() {
        let digits = draw();
        for image in digits.train.images.chunks(PIXELS) {
            let dark = image.iter().filter(|&&pixel| pixel > 128).count();
            let light = image.iter().filter(|&&pixel| pixel < 64).count();
            assert!(dark >= 15 && light >= PIXELS / 2, "{dark} {light}");
        }
    }
}
