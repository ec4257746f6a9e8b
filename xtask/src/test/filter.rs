//! Selects tests by name.
//!
//! The full name of a test is `crate::binary::path`, such as `control::lifecycle::pause_twice_is_refused` or
//! `node::lib::disk::mounts::tests::a_line_is_read`. A filter consists of words that must all be part of it. A binary
//! that runs twice, or whose tests are in two tiers, is shown as `control::runs@postgres`, and a word may name it like
//! that.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    words: Vec<String>,
    /// The part after an `@`.
    variant: Option<String>,
}

/// The selected part of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Only(Vec<String>),
}

impl Filter {
    pub(crate) fn new(words: Vec<String>) -> Self {
        let mut filter = Self::default();
        for word in words {
            let (name, variant) = word.split_once('@').map_or((word.as_str(), None), |(name, of)| (name, Some(of)));
            filter.words.push(name.to_owned());
            filter.variant = variant.map(str::to_owned).or(filter.variant);
        }
        filter
    }

    /// Whether the filter selects this job, if its tests match.
    pub(crate) fn has_variant(&self, job: &str) -> bool {
        self.variant.as_deref().is_none_or(|variant| job.split_once('@').is_some_and(|(_, of)| of == variant))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn matches(&self, full_name: &str) -> bool {
        self.words.iter().all(|word| full_name.contains(word.as_str()))
    }

    /// Returns what to run of a binary with these tests, or `None` if none of them matches.
    pub(crate) fn select(&self, binary: &str, tests: &[String]) -> Option<Selection> {
        if self.matches(binary) {
            return Some(Selection::All);
        }
        let meant = tests.iter().filter(|test| self.matches(&format!("{binary}::{test}")));
        let meant: Vec<String> = meant.cloned().collect();
        if meant.is_empty() { None } else { Some(Selection::Only(meant)) }
    }

    /// Returns the arguments of a suite if it is selected. Only a first word `suite::NAME` is followed by words for it.
    pub(crate) fn select_suite(&self, suite: &str, has_cases: bool) -> Option<Vec<String>> {
        match self.words.as_slice() {
            words if words.iter().all(|word| suite.contains(word.as_str())) => Some(Vec::new()),
            [first, cases @ ..] if has_cases && first == suite => Some(cases.to_vec()),
            _ => None,
        }
    }

    /// The crate and the binary that the first word names, so that nothing else has to be built.
    pub(crate) fn names_binary(&self) -> Option<(&str, &str)> {
        let mut parts = self.words.first()?.split("::");
        Some((parts.next()?, parts.next()?))
    }

    pub(crate) fn no_match(&self) -> String {
        format!("no test has {} in its name `crate::binary::path`", self.words.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(words: &[&str]) -> Filter {
        Filter::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn without_words_everything_is_meant() {
        assert_eq!(filter(&[]).select("cli::run", &[]), Some(Selection::All));
        assert_eq!(filter(&[]).select_suite("suite::sdk", true), Some(Vec::new()));
    }

    #[test]
    fn a_binary_or_one_of_its_tests_can_be_named() {
        let tests = names(&["pause_twice", "resume"]);
        assert_eq!(filter(&["cli::life"]).select("cli::lifecycle", &tests), Some(Selection::All));
        assert_eq!(filter(&["resume"]).select("cli::lifecycle", &tests), Some(Selection::Only(names(&["resume"]))));
        let both = filter(&["lifecycle", "pause"]);
        assert_eq!(both.select("cli::lifecycle", &tests), Some(Selection::Only(names(&["pause_twice"]))));
        let path = filter(&["cli::lifecycle::pause_twice"]);
        assert_eq!(path.select("cli::lifecycle", &tests), Some(Selection::Only(names(&["pause_twice"]))));
        assert_eq!(filter(&["nothing"]).select("cli::lifecycle", &tests), None);
    }

    #[test]
    fn words_after_a_suite_go_to_the_suite() {
        let one = filter(&["suite::sdk", "pause"]);
        assert_eq!(one.select_suite("suite::sdk", true), Some(names(&["pause"])));
        assert_eq!(one.select_suite("suite::seeds", true), None);
        assert_eq!(one.select_suite("suite::sdk", false), None);
        assert_eq!(filter(&["sdk"]).select_suite("suite::sdk", false), Some(Vec::new()));
        assert_eq!(filter(&["pause"]).select_suite("suite::sdk", true), None);
    }

    #[test]
    fn a_variant_can_be_named_as_it_is_shown() {
        let filter = filter(&["control::runs@postgres"]);
        assert_eq!(filter.select("control::runs", &[]), Some(Selection::All));
        assert!(filter.has_variant("control::runs@postgres") && !filter.has_variant("control::runs"));
        assert!(Filter::default().has_variant("control::runs@postgres"));
    }

    #[test]
    fn a_full_name_says_which_binary_to_build() {
        assert_eq!(filter(&["cli::lifecycle::pause"]).names_binary(), Some(("cli", "lifecycle")));
        assert_eq!(filter(&["pause"]).names_binary(), None);
    }
}
