//! `cargo xtask check`: the checks that take a minute or two and need no root. `cargo xtask ci` runs everything.

use crate::program::{cargo, run};
use crate::steps::Steps;
use crate::{docs, licenses};

pub(crate) fn check() -> Result<(), String> {
    let mut steps = Steps::default();
    check_sources(&mut steps)?;
    crate::test::test(&["--unit"])
}

/// Format, links of the documentation, licenses of dependencies, and lints.
pub(crate) fn check_sources(steps: &mut Steps) -> Result<(), String> {
    steps.time("format", || run(&mut cargo(&["fmt", "--all", "--check"])))?;
    steps.time("links", docs::check)?;
    steps.time("licenses", licenses::licenses)?;
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    steps.time("lints", || run(&mut cargo(&lints)))
}
