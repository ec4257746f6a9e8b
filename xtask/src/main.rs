//! `cargo xtask`: short names for the long commands of this workspace. Each verb has a file.

#![expect(clippy::print_stderr, reason = "its output is for people")]

mod advisories;
mod bench;
mod chaos;
mod check;
mod ci;
mod criu;
mod dependencies;
mod dist;
mod docs;
mod fuzz;
mod graph;
mod licenses;
mod node;
mod program;
mod requirements;
mod setup;
mod steps;
mod test;
mod tier;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--unit|--fake|--real|--sdk|--stress]... [--full] [FILTER]...
                     runs all tests, those of some tiers, or those whose name contains every FILTER
  setup              installs what the tests need and this machine lacks
  check              format, links, licenses, lints and unit tests
  ci                 everything that must hold before a change lands
  dist [--binary FILE] [--output DIR] [PACKAGE]...     packages to install: tarball, deb, wheel, npm, oci, sbom
  licenses           licenses and sources of the crates in the program
  fuzz [--seconds N] [--input FILE] [TARGET]...
  bench [--quick] [--only PART]...
  chaos [--seed N] [--minutes M] [--faults NAME,...]   (chaos --help lists all options)
  docs [--check]                                       checks the documentation's links and numbers, builds its site
  graph [--check|--uses]                               crates and modules, their sizes, and what they use
  requirements [--check]                               docs/requirements.md: its states, or whether it is true

CONTRIBUTING.md describes the tiers.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["test", rest @ ..] => test::test(rest),
        ["setup"] => setup::setup(),
        ["check"] => check::check(),
        ["ci"] => ci::ci(),
        ["dist", rest @ ..] => dist::dist(rest),
        ["licenses"] => licenses::licenses(),
        ["fuzz", rest @ ..] => fuzz::fuzz(rest),
        ["bench", rest @ ..] => bench::bench(rest),
        ["chaos", rest @ ..] => chaos::chaos(rest),
        ["docs", rest @ ..] => docs::docs(rest),
        ["graph", rest @ ..] => graph::graph(rest),
        ["requirements", rest @ ..] => requirements::requirements(rest),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
