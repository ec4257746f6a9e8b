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
    /// Create an e2b.toml and an e2b.Dockerfile to start from.
    Init(TemplateInitArgs),
    /// Check an e2b.toml, its Dockerfile and the files it copies.
    Check(TemplateCheckArgs),
    /// Build a template from e2b.toml and its Dockerfile on a server, or a template that comes with Isopod on this
    /// machine.
    #[command(visible_alias = "create")]
    Build(Box<TemplateBuildArgs>),
    /// List the templates of the server, or of this machine if there is no API key.
    #[command(visible_alias = "list")]
    Ls(TemplateListArgs),
    /// Show a template and its builds.
    Show(TemplateShowArgs),
    /// Remove templates; their sandboxes keep running.
    #[command(visible_alias = "delete")]
    Rm(TemplateRmArgs),
    /// Export a template as an image (an OCI archive) that Docker, Podman and others can run.
    Export(TemplateExportArgs),
    /// Add tags to a build, or remove them. To roll back, move a tag to an earlier build.
    Tag(TemplateTagArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateInitArgs {
    /// Name of the template.
    pub(crate) name: String,
    /// Directory to write to; it is created if it does not exist.
    #[arg(short, long, default_value = ".e2b")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateCheckArgs {
    /// Directory of the e2b.toml [default: the current directory, else .e2b].
    pub(crate) path: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateBuildArgs {
    /// Directory of the e2b.toml [default: the current directory, else .e2b], or the name of a template that comes with
    /// Isopod, such as code-interpreter-v1, to build on this machine.
    pub(crate) what: Option<String>,
    /// Name of the template, optionally with a tag, such as web:v1 [default: template_name in e2b.toml].
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Additional tag for the build (repeatable).
    #[arg(short, long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// Dockerfile in the directory [default: dockerfile in e2b.toml, else e2b.Dockerfile or Dockerfile].
    #[arg(short, long)]
    pub(crate) dockerfile: Option<String>,
    /// Command to run in every new sandbox [default: start_cmd in e2b.toml].
    #[arg(short = 'c', long = "cmd", value_name = "COMMAND")]
    pub(crate) start_cmd: Option<String>,
    /// Command to retry until it succeeds; the sandbox is then ready [default: ready_cmd in e2b.toml].
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ready_cmd: Option<String>,
    /// Number of CPUs of its sandboxes [default: cpu_count in e2b.toml, else the server's default].
    #[arg(long, value_name = "N")]
    pub(crate) cpu_count: Option<u32>,
    /// Memory of its sandboxes in MiB [default: memory_mb in e2b.toml, else the server's default].
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mb: Option<u64>,
    /// Value for an ARG of the Dockerfile.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) build_arg: Vec<Pair>,
    /// Stage to build instead of the last one.
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Do not reuse steps of earlier builds.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// If an image of FROM cannot be pulled, use the files of the server's host instead, even if they are of another
    /// version.
    #[arg(long)]
    pub(crate) allow_host_base: bool,
    /// Rebuild a template that comes with Isopod, even if it is already built.
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
    /// List the templates of this machine, without contacting a server.
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
    /// Name or id of the template.
    pub(crate) template: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateRmArgs {
    /// Names or ids of the templates.
    #[arg(required = true)]
    pub(crate) templates: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateExportArgs {
    /// Build: NAME for the default tag, NAME:TAG, or NAME:BUILD-ID.
    pub(crate) template: String,
    /// Archive to write.
    pub(crate) file: PathBuf,
    /// Name of the image in the archive [default: the template's name and tag].
    #[arg(long, value_name = "IMAGE")]
    pub(crate) name: Option<String>,
    /// Combine all layers into one, without files that a later step removed.
    #[arg(long)]
    pub(crate) squash: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateTagArgs {
    /// Build: NAME for the default tag, NAME:TAG, or NAME:BUILD-ID.
    pub(crate) target: String,
    /// Tags to add or remove.
    #[arg(required = true)]
    pub(crate) tags: Vec<String>,
    /// Remove the tags instead of adding them.
    #[arg(long)]
    pub(crate) remove: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
