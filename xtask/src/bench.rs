//! `cargo xtask bench`: builds an optimized binary, measures, and writes the report to `docs/bench/results.md`. A quick
//! run only prints it.

use std::process::Command;

use crate::criu;
use crate::program::{cargo, root, run, target_directory};

pub(crate) fn bench(options: &[&str]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release", "--package", "isopod", "--package", "isopod-bench"]))?;
    let built = target_directory()?.join("release");
    let mut bench = Command::new(built.join("isopod-bench"));
    if let Some(criu) = criu::program().filter(|_| std::env::var_os(criu::VARIABLE).is_none()) {
        bench.env(criu::VARIABLE, criu);
    }
    bench.current_dir(root()).arg("--isopod").arg(built.join("isopod")).args(options);
    if options.is_empty() {
        bench.args(["--output", "docs/bench/results.md"]);
    }
    run(&mut bench)
}
