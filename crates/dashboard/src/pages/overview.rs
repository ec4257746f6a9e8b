//! `/dashboard`: what runs, and how the server is.

use std::sync::Arc;

use axum::response::Response;
use isopod_api::Needs::Session;
use isopod_api::{Routes, page, reads};
use maud::html;

use crate::Dashboard;
use crate::failure::Failure;
use crate::page::{Page, Section};
use crate::visit::Visit;

pub(crate) fn routes() -> Routes<Arc<Dashboard>> {
    Routes::new().route("/dashboard", [page(reads(Session), show)])
}

async fn show(visit: Visit) -> Result<Response, Failure> {
    let content = html! { h1 { "Overview" } };
    Ok(Page::new("Overview", Section::Overview).refresh(2).show(&visit, content))
}
