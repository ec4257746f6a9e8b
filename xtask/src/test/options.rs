//! The command-line options.

use std::collections::BTreeSet;

use super::Tier;
use super::filter::Filter;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The tiers that were named.
    named: BTreeSet<Tier>,
    pub(crate) extent: Extent,
    pub(crate) filter: Filter,
    /// Whether a tier that cannot run is an error.
    is_strict: bool,
}

/// How far the heavy cases go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extent {
    #[default]
    Usual,
    Full,
}

impl Options {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = Vec::new();
        for argument in arguments {
            match argument.strip_prefix("--") {
                Some("full") => options.extent = Extent::Full,
                Some(name) => {
                    let tier = Tier::parse(name).ok_or_else(|| format!("unknown option --{name}; {TIERS}"))?;
                    options.named.insert(tier);
                }
                None => words.push((*argument).to_owned()),
            }
        }
        options.filter = Filter::new(words);
        Ok(options)
    }

    /// All tiers. A tier that cannot run is a failure.
    pub(crate) fn everything() -> Self {
        Self { is_strict: true, ..Self::default() }
    }

    pub(crate) fn tiers(&self) -> BTreeSet<Tier> {
        if self.named.is_empty() { Tier::ALL.into() } else { self.named.clone() }
    }

    /// Whether missing packages may be installed: nothing was named, so everything is meant. CI has done so before.
    pub(crate) fn may_install(&self) -> bool {
        self.named.is_empty() && self.filter.is_empty() && !self.is_strict
    }

    pub(crate) fn must_run(&self, tier: Tier) -> bool {
        self.is_strict || self.named.contains(&tier)
    }
}

const TIERS: &str = "the tiers are --unit, --fake, --real, --sdk, --stress and --full";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

    use super::*;

    #[test]
    fn an_unknown_tier_is_refused() {
        assert!(Options::parse(&["--unix"]).unwrap_err().contains("--unit"));
    }

    #[test]
    fn without_arguments_all_tiers_run_and_none_must() {
        let options = Options::parse(&[]).unwrap();
        assert_eq!(options.tiers().len(), Tier::ALL.len());
        assert!(options.may_install() && !options.must_run(Tier::Real));
        assert!(Options::everything().must_run(Tier::Real));
        assert!(!Options::parse(&["--real"]).unwrap().may_install());
    }

    #[test]
    fn a_tier_that_was_named_must_run_and_no_other_does() {
        let options = Options::parse(&["--fake", "--unit", "pause"]).unwrap();
        assert_eq!(options.tiers(), [Tier::Unit, Tier::Fake].into());
        assert!(options.must_run(Tier::Fake) && !options.must_run(Tier::Real));
        assert!(!options.filter.is_empty() && options.extent == Extent::Usual);
        assert_eq!(Options::parse(&["--full"]).unwrap().extent, Extent::Full);
    }
}
