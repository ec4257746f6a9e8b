//! Signing in with an API key or a team token, and signing out.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Form, Query, State};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use isopod_api::address_of;
use maud::html;
use serde::Deserialize;
use serde_json::Value;

use crate::Dashboard;
use crate::api::Api;
use crate::cookies::{CookieName, append_cookie};
use crate::failure::Failure;
use crate::page::{document, logo};
use crate::session::{Credentials, LIFETIME, MAX_COOKIE, Role, Session};
use crate::visit::Visit;

const HOME: &str = "/dashboard";

#[derive(Deserialize)]
pub(crate) struct Asked {
    next: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct SignIn {
    #[serde(default)]
    key: String,
    /// For a token. A key knows its team.
    #[serde(default)]
    team: String,
    #[serde(default)]
    next: String,
}

/// `GET /dashboard/sign-in`
pub(crate) async fn show(Query(asked): Query<Asked>) -> Response {
    form(StatusCode::OK, asked.next.as_deref().unwrap_or(HOME), None)
}

/// `POST /dashboard/sign-in`
pub(crate) async fn submit(
    State(dashboard): State<Arc<Dashboard>>,
    parts: Parts,
    Form(given): Form<SignIn>,
) -> Result<Response, Failure> {
    let address = address_of(&parts);
    let next = checked_next(&given.next);
    if dashboard.guesses.take(address, Instant::now()).is_err() {
        let message = "Too many wrong keys. Wait a minute and try again.";
        return Ok(form(StatusCode::TOO_MANY_REQUESTS, next, Some(message)));
    }
    let secret = given.key.trim().to_owned();
    let credentials = match given.team.trim() {
        "" => Credentials::Key(secret),
        team => Credentials::Token { token: secret, team: team.to_owned() },
    };
    let api = Api::new(dashboard.front.clone(), credentials.clone(), &parts.headers, &parts.extensions);
    let (role, team) = match identify(&api).await {
        Ok(found) => found,
        Err(failure) if failure.status == StatusCode::UNAUTHORIZED || failure.status == StatusCode::FORBIDDEN => {
            return Ok(form(StatusCode::FORBIDDEN, next, Some("This key is not valid here.")));
        }
        Err(failure) => return Err(failure),
    };
    dashboard.guesses.give_back(address);
    let sealed = Session::begin(credentials, role, team).sealed(&dashboard.key);
    if sealed.len() > MAX_COOKIE {
        return Ok(form(StatusCode::BAD_REQUEST, next, Some("This token is too long for a cookie.")));
    }
    let mut response = see_other(next);
    append_cookie(&mut response, CookieName::of("session", &parts).set(&sealed, LIFETIME.as_secs()));
    Ok(response)
}

/// `POST /dashboard/sign-out`
pub(crate) async fn sign_out(State(dashboard): State<Arc<Dashboard>>, visit: Visit, parts: Parts) -> Response {
    dashboard.signed_out.add(&visit.session);
    let mut response = see_other("/dashboard/sign-in");
    append_cookie(&mut response, CookieName::of("session", &parts).clear());
    response
}

/// Finds out what the credentials are good for, by what the API says to them.
async fn identify(api: &Api) -> Result<(Role, String), Failure> {
    let teams: Value = match api.get("/teams").await {
        Ok(teams) => teams,
        // Every valid key has a quota to look at.
        Err(failure) if failure.status == StatusCode::FORBIDDEN => {
            api.get::<Value>("/api/v1/quota").await?;
            return Ok((Role::Limited, "limited key".to_owned()));
        }
        Err(failure) => return Err(failure),
    };
    let team = teams[0]["name"].as_str().unwrap_or_default().to_owned();
    let role = if api.get::<Value>("/nodes").await.is_ok() { Role::Admin } else { Role::Team };
    Ok((role, team))
}

/// The page with the form. `next` is the page to go on to.
pub(crate) fn form(status: StatusCode, next: &str, problem: Option<&str>) -> Response {
    let next = checked_next(next);
    let body = html! {
        body .plain {
            main #main .sign-in {
                div .brand { (logo()) span { "Isopod" } }
                h1 { "Sign in" }
                @if let Some(problem) = problem { p .notice .bad role="alert" { (problem) } }
                form method="post" action="/dashboard/sign-in" {
                    input type="hidden" name="next" value=(next);
                    label for="key" { "API key or team token" }
                    input #key name="key" type="password" required autofocus autocomplete="current-password"
                        spellcheck="false" autocapitalize="off";
                    details {
                        summary { "I have a team token" }
                        label for="team" { "Team" }
                        input #team name="team" type="text" autocomplete="organization" spellcheck="false";
                        p .hint { "The id of the team that the token is for. A key needs none." }
                    }
                    button .primary type="submit" { "Sign in" }
                }
                p .hint { code { "isopod key ls" } " lists keys; " code { "isopod key create" } " makes one." }
            }
        }
    };
    document(status, "Sign in", html! {}, body, None)
}

/// Only our own pages, so that a link to the sign-in page can't lead elsewhere.
fn checked_next(next: &str) -> &str {
    let is_page = next == HOME || next.starts_with("/dashboard/") || next.starts_with("/dashboard?");
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let is_form = next.starts_with("/dashboard/sign-");
    if is_page && is_plain && !is_form { next } else { HOME }
}

fn see_other(next: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let next = HeaderValue::try_from(next).unwrap_or(HeaderValue::from_static(HOME));
    response.headers_mut().insert(header::LOCATION, next);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_leads_only_to_our_own_pages() {
        for next in ["/dashboard", "/dashboard/sandboxes?q=a%20b", "/dashboard?x"] {
            assert_eq!(checked_next(next), next);
        }
        for next in [
            "",
            "/",
            "//evil.com",
            "/dashboardx",
            "https://evil.com",
            "/dashboard\\evil",
            "/dashboard/a\nb",
            "javascript:x",
            "/dashboard/sign-in",
        ] {
            assert_eq!(checked_next(next), HOME, "{next}");
        }
    }
}
