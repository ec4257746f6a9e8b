//! Measured durations and their statistics.

use std::time::Duration;

/// A set of measurements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    sorted: Vec<Duration>,
}

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        let place = self.sorted.partition_point(|other| *other <= sample);
        self.sorted.insert(place, sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the value below which this share of the samples is, or zero if there are none.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get((self.sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(iter: I) -> Self {
        let mut sorted: Vec<_> = iter.into_iter().collect();
        sorted.sort();
        Self { sorted }
    }
}

/// Milliseconds with two decimals.
pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

/// How many times the second the first is, or a dash if there is no second.
pub(crate) fn times(of: Duration, by: Duration) -> String {
    match by.is_zero() {
        true => "–".to_owned(),
        false => format!("{:.2}×", of.as_secs_f64() / by.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_samples() {
        let samples: Samples = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(samples.median(), Duration::from_millis(51));
        assert_eq!(samples.percentile(99), Duration::from_millis(100));
        assert_eq!(Samples::default().median(), Duration::ZERO);
    }

    #[test]
    fn a_sample_is_put_in_its_place() {
        let mut samples = Samples::default();
        [3, 1, 2].into_iter().for_each(|n| samples.push(Duration::from_millis(n)));
        assert_eq!(samples.median(), Duration::from_millis(2));
        assert_eq!(samples.len(), 3);
    }
}
