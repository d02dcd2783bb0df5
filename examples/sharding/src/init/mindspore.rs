//! The normal random numbers of MindSpore 1.x on a CPU, for comparison with its published losses.

/// The number of workers that fill a tensor in MindSpore. A tensor with at most this many numbers
/// has only one.
const WORKERS: usize = 16;

/// MindSpore 1.x's value of pi.
#[expect(clippy::approx_constant, reason = "the exact value would give other numbers")]
const PI: f32 = 3.14;

/// Draws `count` numbers from N(0, `deviation`) with `seed`.
pub(super) fn normal(seed: u32, count: usize, deviation: f32) -> Vec<f32> {
    let workers = if count <= WORKERS { 1 } else { WORKERS };
    let chunk = count / workers;
    let mut numbers = Vec::with_capacity(count);
    for worker in 0..workers {
        let length = if worker + 1 == workers { count - chunk * worker } else { chunk };
        let mut generator = Generator::new(seed, (length * worker).div_ceil(4) as u64);
        let end = numbers.len() + length;
        while numbers.len() < end {
            let four = generator.four();
            for pair in [[four[0], four[1]], [four[2], four[3]]] {
                let [radius, angle] = pair.map(uniform);
                let radius = libm::sqrtf(-2.0 * libm::logf(radius));
                let angle = 2.0 * PI * angle;
                numbers.extend([
                    radius * libm::sinf(angle) * deviation,
                    radius * libm::cosf(angle) * deviation,
                ]);
            }
        }
        numbers.truncate(end);
    }
    numbers
}

/// Converts the low bits of a word to a number in [1e-7, 1).
fn uniform(word: u32) -> f32 {
    (f32::from_bits(0x3f80_0000 | word & 0x7f_ffff) - 1.0).max(1e-7)
}

/// MindSpore's variant of Philox, in which the rounds change the stored key and counter.
struct Generator {
    key: u32,
    counter: u128,
}

impl Generator {
    fn new(seed: u32, skipped: u64) -> Generator {
        Generator { key: seed, counter: u128::from(skipped) }
    }

    fn four(&mut self) -> [u32; 4] {
        for _ in 0..10 {
            let [c0, c1, c2, c3] = words(self.counter);
            let (p, q) = (u64::from(c0) * 0xD251_1F53, u64::from(c2) * 0xCD9E_8D57);
            let (high, low) =
                (|product: u64| (product >> 32) as u32, |product: u64| product as u32);
            let mixed = [high(q) ^ c1 ^ self.key, low(q), high(p) ^ c3 ^ self.key, low(p)];
            self.counter = (0..4).fold(0, |all, word| all | u128::from(mixed[word]) << (32 * word));
            self.key = self.key.wrapping_add(0x9E37_79B9);
        }
        self.counter = self.counter.wrapping_add(1);
        words(self.counter)
    }
}

fn words(counter: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (counter >> shift) as u32)
}
