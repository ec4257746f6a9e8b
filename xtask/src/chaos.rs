//! `cargo xtask chaos`: kills and disconnects parts of a server by a seeded schedule while clients use it. The suite is
//! in `tests/chaos`, its description in `docs/chaos.md`.

use std::process::Command;

use crate::program::{cargo, root, run, target_directory};

pub(crate) fn chaos(options: &[&str]) -> Result<(), String> {
    run(&mut cargo(&["build", "--package", "isopod"]))?;
    let built = target_directory()?.join("debug");
    let mut suite = Command::new("python3");
    suite.current_dir(root()).arg("tests/chaos/run.py").arg("--isopod").arg(built.join("isopod"));
    run(suite.args(options))
}
