//! A stand-in for `docker`, for E2B's older CLI: `e2b template build` logs in to a registry, builds an image and pushes it. Isopod
//! builds the Dockerfile itself and has no registry. What it lacks is the files, so the stand-in sends them.
//!
//! The program is this one, called `docker`: `isopod env` puts a link with that name on the command's `PATH`.

mod build;
mod image_name;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::args::{DockerArgs, DockerCommand};
use crate::failure;

pub(crate) const NAME: &str = "docker";

/// Whether this program was called as the stand-in.
pub(crate) fn is_called(program: Option<OsString>) -> bool {
    program.is_some_and(|program| Path::new(&program).file_name().is_some_and(|name| name == NAME))
}

pub(crate) fn run() -> ExitCode {
    let args = match DockerArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let reason = error.to_string();
            say_error!("docker: {}", reason.lines().next().unwrap_or_default().trim_start_matches("error: "));
            say_error!(
                "This is no Docker, but Isopod's stand-in for it, which knows only what `e2b template build` needs."
            );
            return ExitCode::FAILURE;
        }
    };
    match obey(args.command) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

fn obey(command: DockerCommand) -> anyhow::Result<ExitCode> {
    match command {
        DockerCommand::Build(args) => super::block_on(build::run(*args)),
        DockerCommand::Login(_) => {
            // The token. Whoever writes it should not find the reader gone.
            io::copy(&mut io::stdin(), &mut io::sink()).context("could not read the password")?;
            Ok(ExitCode::SUCCESS)
        }
        DockerCommand::Push(_) | DockerCommand::Tag(_) => Ok(ExitCode::SUCCESS),
    }
}
