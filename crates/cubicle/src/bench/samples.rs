//! Measured values and what they come to.

use std::time::Duration;

/// Values of one measurement, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn push_time(&mut self, taken: Duration) {
        self.push(taken.as_secs_f64() * 1e3);
    }

    pub(crate) fn p50(&self) -> Option<f64> {
        self.percentile(50.0)
    }

    pub(crate) fn p99(&self) -> Option<f64> {
        self.percentile(99.0)
    }

    /// The smallest value that at least `percent` of all values do not exceed. Nothing is interpolated: what is
    /// reported was measured.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = f64>) -> Samples {
        Samples(values.into_iter().collect())
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred = samples((1..=100).rev().map(f64::from));
        let table = [(1.0, 1.0), (50.0, 50.0), (99.0, 99.0), (99.5, 100.0), (100.0, 100.0)];
        for (percent, expected) in table {
            assert_eq!(hundred.percentile(percent), Some(expected), "{percent}");
        }
        assert_eq!(samples([3.0, 1.0, 2.0]).p50(), Some(2.0));
        assert_eq!(samples([1.0, 2.0]).p50(), Some(1.0));
        assert_eq!(samples([1.0, 2.0]).p99(), Some(2.0));
        assert_eq!(samples([7.0]).percentile(0.0), Some(7.0));
    }

    #[test]
    fn nothing_measured_has_no_percentile() {
        assert_eq!(Samples::default().p50(), None);
        assert_eq!(Samples::default().percentile(0.0), None);
    }

    #[test]
    fn times_are_kept_in_milliseconds() {
        let mut samples = Samples::default();
        samples.push_time(Duration::from_micros(1500));
        assert_eq!(samples.p99(), Some(1.5));
    }
}
