//! Publishes and removes templates, and removes snapshots. Neither affects existing sandboxes of the template.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use isopod_store::TemplateKind;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = TemplateChange)]
pub(super) struct Change {
    public: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChangedTemplate)]
pub(super) struct Changed {
    names: Vec<String>,
}

/// `PATCH /v2/templates/{id}` and `PATCH /templates/{id}`
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<Change>,
) -> Result<Json<Changed>, ApiError> {
    let wanted = body.parse()?;
    let (template, _) = app.catalogue.find_built(&caller.team, &id).await?;
    if let Some(public) = wanted.public {
        app.catalogue.store.publish_template(&template.id, public).await?;
    }
    Ok(Json(Changed { names: template.names }))
}

/// `DELETE /templates/{id}`: cancels running builds.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    let (template, reference) = app.catalogue.find_own(&caller.team, &id).await?;
    // Clients name snapshots with their tags.
    let is_snapshot = template.kind == TemplateKind::Snapshot;
    if !is_snapshot && reference.tag.is_some() && reference.tag() != crate::templates::DEFAULT_TAG {
        return Err(ApiError::bad_request("name the template without a tag, or remove the tag"));
    }
    for build in app.catalogue.store.list_builds(&template.id).await? {
        app.catalogue.builds.cancel(&build.id);
    }
    app.catalogue.store.remove_template(&template.id).await?;
    app.catalogue.builds.discard_leftovers().await?;
    if is_snapshot {
        app.fleet.remove_unrecorded_snapshots().await?;
    }
    Ok(Empty)
}
