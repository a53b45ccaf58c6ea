//! Fuzz targets without a fuzzer: their seeds, changed in a way that is the same on every run. A short look at every
//! decoder that every `cargo test` takes; `fuzz/run.sh` looks longer.

use std::path::Path;

const ROUNDS: usize = 3000;
const LONGEST: usize = 16 * 1024;

/// SplitMix64: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    const INTERESTING: [u8; 12] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'.', b'%', b'\r', b'\n', b'0', b'"'];
    for _ in 0..=dice.below(4) {
        let at = dice.below(input.len());
        match dice.below(8) {
            0 if !input.is_empty() => input[at] ^= 1 << dice.below(8),
            1 if !input.is_empty() => input[at] = INTERESTING[dice.below(INTERESTING.len())],
            2 => input.insert(at, INTERESTING[dice.below(INTERESTING.len())]),
            3 => input.truncate(at),
            4 => {
                let end = (at + dice.below(64)).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let end = (at + dice.below(600)).min(input.len());
                let copy = input[at..end].to_vec();
                let to = dice.below(input.len());
                input.splice(to..to, copy);
            }
            6 => {
                let other = &seeds[dice.below(seeds.len())];
                let from = dice.below(other.len());
                input.extend_from_slice(&other[from..]);
            }
            _ if input.len() >= 8 => {
                let at = dice.below(input.len() - 7);
                input[at..at + 8].copy_from_slice(&dice.next().to_le_bytes());
            }
            _ => {}
        }
        input.truncate(LONGEST);
    }
}

/// Gives the seeds of a target to it, as they are and changed.
pub(crate) fn run(name: &str, target: fn(&[u8])) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty());
    for seed in &seeds {
        target(seed);
    }
    let mut dice = Dice(name.len() as u64);
    for round in 0..ROUNDS {
        let mut input = seeds[dice.below(seeds.len())].clone();
        mutate(&mut input, &seeds, &mut dice);
        let result = std::panic::catch_unwind(|| target(&input));
        assert!(result.is_ok(), "round {round} with {:?}", String::from_utf8_lossy(&input));
    }
}
