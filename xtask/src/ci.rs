//! `cargo xtask ci`: everything that must pass before a change lands. `.ci/run` calls it.

use crate::advisories::check_advisories;
use crate::check::check_sources;
use crate::steps::Steps;
use crate::test::{self, Options};
use crate::{docs, program, setup};

pub(crate) fn ci() -> Result<(), String> {
    let mut steps = Steps::default();
    let done = run(&mut steps);
    steps.print();
    done
}

fn run(steps: &mut Steps) -> Result<(), String> {
    steps.time("setup", setup::setup)?;
    check_sources(steps)?;
    check_advisories(steps)?;
    steps.time("documentation", docs::build)?;
    test::run(&Options::everything(), steps)?;
    let target = program::target_directory()?;
    steps.note(format!("logs and times of the tests: {}", target.join("xtask").display()));
    Ok(())
}
