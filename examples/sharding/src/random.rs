//! Random numbers that depend only on the seed and their purpose, not on when or where they are
//! drawn.
//!
//! ChaCha8's block function computes every number from a seed, a [`Purpose`] and an index. The
//! numbers are the same on every rank, platform and version.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// The purpose of random numbers. Two purposes never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The initial value of parameter number n of a model.
    Parameter(u32),
    /// The order of the samples in epoch n.
    Epoch(u32),
    /// The shape of embedded digit number n.
    Digit(u32),
}

impl Purpose {
    fn stream(self) -> u64 {
        let (kind, number) = match self {
            Purpose::Parameter(number) => (1, number),
            Purpose::Epoch(number) => (2, number),
            Purpose::Digit(number) => (3, number),
        };
        kind << 32 | u64::from(number)
    }
}

/// The numbers of one seed and purpose.
#[derive(Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    pub fn new(seed: u64, purpose: Purpose) -> Stream {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(purpose.stream());
        Stream(generator)
    }

    /// The same stream, starting at number `index`. Each number takes 64 bits.
    pub fn at(mut self, index: u64) -> Stream {
        self.0.set_word_pos(u128::from(index) * 2);
        self
    }

    /// A number in [0, 1), in steps of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in [from, to).
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.uniform()
    }

    /// A number from the standard normal distribution. Uses two numbers of the stream.
    pub fn normal(&mut self) -> f64 {
        // Box-Muller with libm's functions, because platforms' own functions differ in the last
        // bit.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(std::f64::consts::TAU * self.uniform())
    }

    /// A whole number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        // The high half of the product has a bias of at most limit / 2^64.
        ((u128::from(self.0.next_u64()) * limit as u128) >> 64) as usize
    }

    pub fn bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Returns number `index` of a parameter's standard normal numbers.
pub fn normal(seed: u64, parameter: u32, index: u64) -> f64 {
    Stream::new(seed, Purpose::Parameter(parameter)).at(index * 2).normal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_does_not_depend_on_what_was_drawn_before() {
        let mut stream = Stream::new(7, Purpose::Parameter(0));
        for index in 0..100 {
            assert_eq!(stream.normal(), normal(7, 0, index));
        }
    }

    #[test]
    fn the_numbers_are_those_of_every_platform_and_version() {
        let mut stream = Stream::new(0, Purpose::Digit(0));
        stream.0.set_stream(0);
        let mut bytes = [0; 8];
        stream.bytes(&mut bytes);
        // ChaCha8 with an all-zero key and nonce, as published with the eSTREAM test vectors.
        assert_eq!(bytes, [0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6]);
    }

    #[test]
    fn seeds_purposes_and_numbers_give_other_streams() {
        let mut first: Vec<f64> = [
            (1, Purpose::Parameter(0)),
            (1, Purpose::Parameter(1)),
            (1, Purpose::Epoch(0)),
            (1, Purpose::Epoch(1)),
            (1, Purpose::Digit(0)),
            (2, Purpose::Epoch(0)),
            (1 << 63, Purpose::Epoch(0)),
        ]
        .map(|(seed, purpose)| Stream::new(seed, purpose).uniform())
        .to_vec();
        first.sort_by(f64::total_cmp);
        first.dedup();
        assert_eq!(first.len(), 7);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let numbers: Vec<f64> = (0..10_000).map(|index| normal(1, 0, index)).collect();
        let mean = numbers.iter().sum::<f64>() / 1e4;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        let beyond = numbers.iter().filter(|x| x.abs() > 1.96).count();
        assert!((400..600).contains(&beyond), "{beyond}");
    }

    #[test]
    fn shuffling_keeps_every_item_and_moves_most() {
        let mut items: Vec<u32> = (0..1000).collect();
        Stream::new(1, Purpose::Epoch(0)).shuffle(&mut items);
        assert!(items.iter().enumerate().filter(|&(i, &item)| i as u32 == item).count() < 10);
        items.sort_unstable();
        assert!(items.iter().enumerate().all(|(i, &item)| i as u32 == item));
    }
}
