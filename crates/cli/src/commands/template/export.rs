//! `isopod template export`: a template as an image, in a file.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_client::ApiError;
use isopod_client::sandbox::TemplateImage;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::super::remote::client;
use super::advise;
use crate::args::TemplateExportArgs;
use crate::failure::Hint;
use crate::printable::printable;

pub(super) async fn run(args: TemplateExportArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let exported = client.export_template(&args.template, args.name.as_deref(), args.squash).await;
    let image = exported.map_err(refused)?;
    let digest = image.digest().unwrap_or_default().to_owned();
    let mut file = File::create(&args.file).await.with_context(|| format!("could not make {}", args.file.display()))?;
    if let Err(error) = save(image, &mut file, &args.file).await {
        let _ = tokio::fs::remove_file(&args.file).await;
        return Err(error);
    }
    say!("{}", printable(&digest));
    Ok(ExitCode::SUCCESS)
}

async fn save(mut image: TemplateImage, file: &mut File, path: &Path) -> anyhow::Result<()> {
    let failed = || format!("could not write {}", path.display());
    while let Some(piece) = image.next().await.map_err(advise)? {
        file.write_all(&piece).await.with_context(failed)?;
    }
    file.flush().await.with_context(failed)
}

fn refused(error: ApiError) -> anyhow::Error {
    let advice = match &error {
        ApiError::Conflict { error_code: Some(code), .. } => match code.as_str() {
            "template_on_host" => {
                "if FROM names an image already, its build log says why it was not used; isopod image pull adds it"
            }
            "template_of_other_team" => "--squash exports it as one layer",
            _ => return advise(error),
        },
        _ => return advise(error),
    };
    Hint::new(error.to_string(), advice)
}
