//! `isopod template rm`: templates and all their builds.

use std::process::ExitCode;

use super::super::remote::client;
use super::advise;
use crate::args::TemplateRmArgs;
use crate::failure::Hint;

pub(super) async fn run(args: TemplateRmArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    for template in &args.templates {
        if !client.remove_template(template).await.map_err(advise)? {
            return Err(Hint::new(
                format!("there is no template {template:?} of yours"),
                "isopod template ls lists those that there are",
            ));
        }
        say!("{template}");
    }
    Ok(ExitCode::SUCCESS)
}
