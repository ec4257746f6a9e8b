//! What our stand-in for `docker` can be told: the words that E2B's CLI says to it, and none of the other things that the real
//! one can do.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::ServerArgs;

#[derive(Debug, Parser)]
#[command(name = "docker", disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct DockerArgs {
    #[command(subcommand)]
    pub(crate) command: DockerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DockerCommand {
    Build(Box<DockerBuildArgs>),
    Login(DockerOtherArgs),
    Push(DockerOtherArgs),
    Tag(DockerOtherArgs),
}

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DockerBuildArgs {
    /// Directory with the files.
    pub(crate) path: PathBuf,
    #[arg(short, long)]
    pub(crate) tag: String,
    /// The server has its text already.
    #[arg(short, long)]
    pub(crate) file: Option<PathBuf>,
    /// `NAME=VALUE`, or `NAME` with the value that the variable has.
    #[arg(long)]
    pub(crate) build_arg: Vec<String>,
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// The server decides whether it asks a registry.
    #[arg(long)]
    pub(crate) pull: bool,
    /// The server builds for itself.
    #[arg(long)]
    pub(crate) platform: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Of commands that would speak with a registry. Whatever they say is taken.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DockerOtherArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_versions_of_the_cli_say_is_understood() {
        let image = "docker.e2b.app/e2b/custom-envs/abc:0f9c";
        let lines = [
            format!(
                "docker build -f e2b.Dockerfile --pull --platform linux/amd64 -t {image} --build-arg A=b --no-cache ."
            ),
            format!("docker build . -f e2b.Dockerfile --pull --platform linux/amd64 -t {image} --build-arg=A=b"),
        ];
        for line in lines {
            let DockerCommand::Build(build) = DockerArgs::try_parse_from(line.split(' ')).unwrap().command else {
                panic!("{line}")
            };
            assert_eq!(
                (build.tag.as_str(), build.path.to_str(), build.build_arg.as_slice()),
                (image, Some("."), ["A=b".to_owned()].as_slice())
            );
        }
        for line in
            ["docker login docker.e2b.app -u _e2b_access_token --password-stdin", "docker push x", "docker tag x y"]
        {
            assert!(DockerArgs::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in ["docker", "docker --help", "docker version", "docker build -t x --secret y .", "docker build -t x"]
        {
            assert!(DockerArgs::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
