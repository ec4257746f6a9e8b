//! The name of a template's generation, as in records: a generation of the base, and what is on top of it.

use std::fmt;

/// Separates the base's generation from what is on top of it.
const JOINT: char = '+';

/// Stands for the base's generation if there is no base.
pub(crate) const NO_BASE: &str = "image";

/// The parts of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationName<'a> {
    /// A generation of the base, or [`NO_BASE`].
    pub(crate) base: &'a str,
    /// The layer of a recipe, or a built template.
    pub(crate) top: Option<&'a str>,
}

impl<'a> GenerationName<'a> {
    pub(crate) fn parse(generation: &'a str) -> Self {
        match generation.split_once(JOINT) {
            Some((base, top)) => Self { base, top: Some(top) },
            None => Self { base: generation, top: None },
        }
    }
}

impl fmt::Display for GenerationName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.top {
            Some(top) => write!(f, "{}{JOINT}{top}", self.base),
            None => f.write_str(self.base),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for (base, top) in [("base-1", None), ("base-1", Some("l-9")), (NO_BASE, Some("tpl-1"))] {
            let name = GenerationName { base, top };
            assert_eq!(GenerationName::parse(&name.to_string()), name);
        }
        assert_eq!(GenerationName { base: "base-1", top: Some("l-9") }.to_string(), "base-1+l-9");
    }
}
