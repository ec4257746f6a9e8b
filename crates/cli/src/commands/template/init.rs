//! `isopod template init`: the two files that a template starts from.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::project::CONFIG;
use crate::args::TemplateInitArgs;

const DOCKERFILE: &str = "e2b.Dockerfile";

pub(super) fn run(args: &TemplateInitArgs) -> anyhow::Result<ExitCode> {
    let name = &args.name;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        bail!("{name:?} is not a template name: use a-z, 0-9, -, _ and .");
    }
    std::fs::create_dir_all(&args.path).with_context(|| format!("could not make {}", args.path.display()))?;
    write_new(&args.path.join(CONFIG), &config(name))?;
    write_new(&args.path.join(DOCKERFILE), FIRST)?;
    say!(
        "wrote {} and {DOCKERFILE}; isopod template build {} builds it",
        args.path.join(CONFIG).display(),
        args.path.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn config(name: &str) -> String {
    format!(
        "template_name = \"{name}\"\ndockerfile = \"{DOCKERFILE}\"\ncpu_count = 2\nmemory_mb = 1_024\n\
         # Runs in every new sandbox:\n# start_cmd = \"/start-up.sh\"\n\
         # Is tried until it succeeds; then the sandbox is ready:\n# ready_cmd = \"curl -fs http://localhost:3000\"\n"
    )
}

const FIRST: &str = "FROM e2bdev/base\n\n# Commands run as root; sandboxes run as `user` in /home/user.\n\
                     # COPY start-up.sh /start-up.sh\n# RUN apt-get update && apt-get install -y ripgrep\n";

/// What people have written is never replaced.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.with_context(|| format!("could not write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("could not write {}", path.display()))
}
