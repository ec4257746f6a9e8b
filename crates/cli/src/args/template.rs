//! What `isopod template` can be told.

use std::path::PathBuf;

use clap::Subcommand;

use super::server::{Pair, ServerArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub(crate) command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Write an e2b.toml and an e2b.Dockerfile to start from.
    Init(TemplateInitArgs),
    /// Say what is wrong with an e2b.toml, its Dockerfile and the files it copies.
    Check(TemplateCheckArgs),
    /// Build a template from e2b.toml and its Dockerfile on a server; or one that comes with Isopod, on this machine.
    #[command(visible_alias = "create")]
    Build(Box<TemplateBuildArgs>),
    /// List templates: those of the server when there is a key, else those of this machine.
    #[command(visible_alias = "list")]
    Ls(TemplateListArgs),
    /// Show a template and its builds.
    Show(TemplateShowArgs),
    /// Remove templates. Their sandboxes go on running.
    #[command(visible_alias = "delete")]
    Rm(TemplateRmArgs),
    /// Give tags to a build, or take them away. A tag on an earlier build goes back to it.
    Tag(TemplateTagArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateInitArgs {
    /// What the template is called.
    pub(crate) name: String,
    /// The directory to write to; it is made.
    #[arg(short, long, default_value = ".e2b")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateCheckArgs {
    /// The directory of the e2b.toml [default: this one, else .e2b].
    pub(crate) path: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateBuildArgs {
    /// The directory of the e2b.toml [default: this one, else .e2b]; or the name of a template that comes with Isopod,
    /// such as code-interpreter-v1, which is then built on this machine.
    pub(crate) what: Option<String>,
    /// What the template is called, perhaps with a tag: web:v1 [default: template_name of e2b.toml].
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// One more tag for the build; may be given several times.
    #[arg(short, long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// The Dockerfile, in the directory [default: dockerfile of e2b.toml, else e2b.Dockerfile or Dockerfile].
    #[arg(short, long)]
    pub(crate) dockerfile: Option<String>,
    /// Runs in every new sandbox [default: start_cmd of e2b.toml].
    #[arg(short = 'c', long = "cmd", value_name = "COMMAND")]
    pub(crate) start_cmd: Option<String>,
    /// Is tried until it succeeds; then a sandbox is ready [default: ready_cmd of e2b.toml].
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ready_cmd: Option<String>,
    /// CPUs of its sandboxes [default: cpu_count of e2b.toml, else the server's].
    #[arg(long, value_name = "N")]
    pub(crate) cpu_count: Option<u32>,
    /// Memory of its sandboxes in MiB [default: memory_mb of e2b.toml, else the server's].
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mb: Option<u64>,
    /// A value for an ARG of the Dockerfile.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) build_arg: Vec<Pair>,
    /// The stage to build instead of the last one.
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Use nothing that earlier builds made.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Build one that comes with Isopod anew although it is there.
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateListArgs {
    /// Those of this machine, without asking a server.
    #[arg(long)]
    pub(crate) local: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateShowArgs {
    /// Its name or id.
    pub(crate) template: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateRmArgs {
    /// Their names or ids.
    #[arg(required = true)]
    pub(crate) templates: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateTagArgs {
    /// Which build: NAME for the default tag, NAME:TAG, or NAME:BUILD-ID.
    pub(crate) target: String,
    /// The tags.
    #[arg(required = true)]
    pub(crate) tags: Vec<String>,
    /// Take them away instead.
    #[arg(long)]
    pub(crate) remove: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
