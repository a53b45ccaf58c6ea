//! How fast a stream is masked.

use std::time::Instant;

use cubicle_egress::redact::{Content, Redaction, Shapes};
use cubicle_egress::secret::Secret;

use super::REDACT;
use crate::bench::progress::Progress;
use crate::bench::row::{Goal, Row};
use crate::bench::samples::Samples;

const GOAL: Goal = Goal::AtLeast(250.0);
const SECRETS: usize = 50;
const BYTES: usize = 64 << 20;
/// As output comes from a sandbox.
const PIECE: usize = 32 * 1024;
/// Something to mask stands about this far apart.
const APART: usize = 64 * 1024;

/// One core, as one stream is masked by one thread.
pub(super) fn measure(count: usize, progress: &Progress) -> Row {
    let secrets: Vec<String> = (0..SECRETS).map(secret).collect();
    let known: Vec<Secret> = secrets.iter().map(|secret| Secret::new(secret.as_str())).collect();
    let text = text(&secrets);
    let mut samples = [Samples::default(), Samples::default()];
    let mut masked = 0;
    // The first round warms up and is not counted.
    for round in 0..=count {
        progress.say(&format!("masking 64 MB, {round} of {count}"));
        for (samples, shapes) in samples.iter_mut().zip([Shapes::none(), Shapes::usual()]) {
            let redaction = Redaction::new(&known, shapes);
            let mut output = Vec::with_capacity(BYTES + PIECE);
            let from = Instant::now();
            let mut stream = redaction.stream(Content::Text);
            for piece in text.chunks(PIECE) {
                stream.push(piece, &mut output);
                // Whoever masks a stream hands it on.
                output.clear();
            }
            stream.finish(&mut output);
            let taken = from.elapsed();
            masked = stream.count();
            if round > 0 {
                samples.push(text.len() as f64 / 1e6 / taken.as_secs_f64());
            }
        }
    }
    let [known, with_shapes] = samples;
    let what = format!(
        "mask 64 MB of log lines with {SECRETS} known secrets in their encodings, {masked} places, on one core (with shapes of credentials too: {:.0} MB/s)",
        with_shapes.p50().unwrap_or(f64::NAN)
    );
    Row::measured(REDACT, what, &known, "MB/s").judged(GOAL)
}

/// A value as keys have it, the same in every run.
fn secret(number: usize) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1);
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(LETTERS[(state >> 33) as usize % LETTERS.len()])
    };
    (0..40).map(|_| letter()).collect()
}

/// Lines as programs log them, with a secret now and then: as it is, in base64, and as a part of a URL.
fn text(secrets: &[String]) -> Vec<u8> {
    use base64::Engine;
    let mut text = Vec::with_capacity(BYTES + 4096);
    let mut next = APART;
    let mut number = 0;
    while text.len() < BYTES {
        let line = format!(
            "2026-01-31T12:00:{:02}Z INFO worker={} request=/api/v1/items/{number} took {} ms, {} of them waiting\n",
            number % 60,
            number % 8,
            number % 997,
            number % 31
        );
        text.extend_from_slice(line.as_bytes());
        if text.len() > next {
            let secret = &secrets[number % secrets.len()];
            let shown = match number % 3 {
                0 => secret.clone(),
                1 => base64::engine::general_purpose::STANDARD.encode(format!("user:{secret}")),
                _ => format!("https://a.example/?token={}", secret.replace('-', "%2D")),
            };
            text.extend_from_slice(format!("WARN header: {shown}\n").as_bytes());
            next += APART;
        }
        number += 1;
    }
    text
}
