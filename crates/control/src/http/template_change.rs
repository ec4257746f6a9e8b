//! Publishing and removing templates. Sandboxes that were made of one are not touched by either.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;

#[derive(Debug, Deserialize)]
struct Change {
    public: Option<bool>,
}

/// `PATCH /v2/templates/{id}` and `PATCH /templates/{id}`
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let wanted: Change = body.parse_lenient()?;
    let (template, _) = app.catalogue.find_own(&caller.team, &id).await?;
    if let Some(public) = wanted.public {
        app.catalogue.store.publish_template(&template.id, public).await?;
    }
    Ok(Json(json!({ "names": template.names })))
}

/// `DELETE /templates/{id}`: builds under way are cancelled.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let (template, reference) = app.catalogue.find_own(&caller.team, &id).await?;
    if reference.tag.is_some() && reference.tag() != crate::templates::DEFAULT_TAG {
        return Err(ApiError::bad_request("name the template without a tag, or remove the tag"));
    }
    for build in app.catalogue.store.list_builds(&template.id).await? {
        app.catalogue.builds.cancel(&build.id);
    }
    app.catalogue.store.remove_template(&template.id).await?;
    app.catalogue.builds.discard_leftovers().await?;
    Ok(StatusCode::NO_CONTENT)
}
