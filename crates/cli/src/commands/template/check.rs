//! `isopod template check`: what is wrong with a template's files, before anything is built.

use std::process::ExitCode;

use serde_json::json;

use super::project::{self, Finding};
use crate::args::TemplateCheckArgs;
use crate::say::print_json_pretty;

pub(super) fn run(args: &TemplateCheckArgs) -> anyhow::Result<ExitCode> {
    match project::read(args.path.as_deref(), None)? {
        Ok(project) => {
            match args.json {
                true => say!("[]"),
                false => say!("{} is fine: {} steps", project.dir.join(&project.dockerfile).display(), project.steps),
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(findings) => {
            tell(&findings, args.json)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

pub(super) fn tell(findings: &[Finding], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        print_json_pretty(&json!(findings));
        return Ok(());
    }
    findings.iter().for_each(|finding| say_error!("{finding}"));
    Ok(())
}
