//! `GET /isopod/templates/{id}/image`: a template as an image, for container runtimes and other servers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, StatusCode, header};
use isopod_api::{ApiError, Caller, Download, Param, Query, QueryParams};
use isopod_store::Template;
use isopod_wire::build::{ExportError, ExportSpec};

use super::app::App;
use crate::templates::{DEFAULT_TAG, FindError, Reference};
use isopod_files::exactly;

pub(super) enum ExportTemplate {}

impl QueryParams for ExportTemplate {
    const PARAMS: &'static [Param] = &[
        Param::text("name").about("the image's name in the archive; by default the template's name and tag"),
        Param::flag("squash").about("combine all layers into one"),
    ];
}

/// The digest of the image, as registries name it.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

pub(super) async fn export(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<ExportTemplate>,
) -> Result<Download, ApiError> {
    let catalogue = &app.catalogue;
    // Only the team's own: layers contain files that a later layer removed, which no sandbox shows.
    let found = catalogue.find_built(&caller.team, &id).await;
    let is_missing = matches!(found, Err(FindError::NotFound(_)));
    if is_missing && catalogue.usable(&caller.team, &id).await.is_ok() {
        // Built-in templates are made of the host's files.
        return Err(refused(ExportError::OnHost));
    }
    let (template, reference) = found?;
    let build = catalogue.tagged(&template, &reference).await?;
    let spec = ExportSpec {
        template: build.node_template.unwrap_or_default(),
        name: query.text("name").map_or_else(|| image_name(&template, &reference), str::to_owned),
        squash: query.flag("squash")?,
    };
    let permit = app.exports.take(&caller.team).ok_or_else(too_many)?;
    let image = catalogue.node.export_template(spec).await.map_err(refused)?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_LENGTH, HeaderValue::from(image.size)),
        (DIGEST, HeaderValue::try_from(image.digest).map_err(|error| ApiError::internal(&error))?),
    ];
    let pieces = exactly(image.file, image.size).inspect(move |_| {
        // The team has one image less in progress when the reply has ended.
        let _ = &permit;
    });
    Ok(Download((headers, Body::from_stream(pieces)).into_response()))
}

/// The template's name with the tag, which images call `latest` if there is no other.
fn image_name(template: &Template, reference: &Reference) -> String {
    let name = template.names.first().unwrap_or(&template.id);
    let tag = match reference.tag() {
        DEFAULT_TAG => "latest",
        tag => tag,
    };
    format!("{name}:{tag}")
}

fn refused(error: ExportError) -> ApiError {
    let message = error.to_string();
    match error {
        ExportError::NotFound(_) => ApiError::not_found(message),
        ExportError::OnHost => ApiError::conflict(message).with_code("template_on_host"),
        ExportError::OtherTeamsLayers => ApiError::conflict(message).with_code("template_of_other_team"),
        ExportError::Files(_) => ApiError::conflict(message).with_code("template_not_exportable"),
        ExportError::Name(_) => ApiError::bad_request(message),
        ExportError::Failed { .. } => ApiError::internal(&error),
    }
}

fn too_many() -> ApiError {
    let message = "your team already exports as many images as it may; try again when one is complete";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).retry_in(Duration::from_secs(10))
}
