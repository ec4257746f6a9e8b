//! `isopod template`: one file per verb. Building, listing and changing go through a server; `recipe` is about the
//! templates that come with Isopod and works on this machine alone.

mod build;
mod check;
mod export;
mod init;
mod ls;
mod pack;
mod project;
mod recipe;
mod rm;
mod show;
mod tag;

use std::path::Path;
use std::process::ExitCode;

use crate::args::{TemplateArgs, TemplateCommand};
use crate::privilege::require_root;

pub(super) use recipe::explain;

/// Packs what `.dockerignore` leaves of a directory, as the context of a build whose Dockerfile the server has.
pub(super) fn pack_directory(dir: &Path) -> anyhow::Result<std::fs::File> {
    pack::pack(dir, &project::read_ignore(dir)?, None)
}

pub(super) async fn run(state_dir: &Path, args: TemplateArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        TemplateCommand::Init(args) => init::run(&args),
        TemplateCommand::Check(args) => check::run(&args),
        TemplateCommand::Build(args) => match build::recipe_of(&args) {
            Some(name) => {
                require_root()?;
                recipe::build(state_dir, &name, args.rebuild, args.json).await
            }
            None => build::run(*args).await,
        },
        TemplateCommand::Ls(args) if args.local || !ls::has_key(&args) => {
            require_root()?;
            recipe::ls(state_dir, args.json)
        }
        TemplateCommand::Ls(args) => ls::run(args).await,
        TemplateCommand::Show(args) => show::run(args).await,
        TemplateCommand::Rm(args) => rm::run(args).await,
        TemplateCommand::Export(args) => export::run(args).await,
        TemplateCommand::Tag(args) => tag::run(args).await,
    }
}

/// What a refusal about templates can be helped with.
fn advise(error: isopod_client::ApiError) -> anyhow::Error {
    match error {
        isopod_client::ApiError::NotFound { message } => {
            crate::failure::Hint::new(message, "isopod template ls lists those that there are")
        }
        other => super::remote::explain(other),
    }
}
