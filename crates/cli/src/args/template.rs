//! What `isopod template` can be told.

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub(crate) command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List the templates of this machine.
    #[command(visible_alias = "list")]
    Ls(TemplateListArgs),
    /// Build one of the templates that come with Isopod. The server does it by itself when it is first asked for one.
    Build(TemplateBuildArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateListArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateBuildArgs {
    /// Which, such as code-interpreter-v1.
    pub(crate) name: String,
    /// Build it anew although it is there.
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
