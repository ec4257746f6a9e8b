//! The frame of all pages: head, navigation, and the policy that says what a page may load.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, header};
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::failure::Failure;
use crate::visit::Visit;

/// A part of the dashboard, with a link in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Sandboxes,
}

impl Section {
    /// In the order of the navigation.
    const ALL: [Self; 2] = [Self::Overview, Self::Sandboxes];

    fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Sandboxes => "Sandboxes",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Overview => "/dashboard",
            Self::Sandboxes => "/dashboard/sandboxes",
        }
    }

    /// The key that opens it, after `g`.
    fn key(self) -> &'static str {
        match self {
            Self::Overview => "o",
            Self::Sandboxes => "s",
        }
    }
}

/// A page of a signed-in user.
#[derive(Debug)]
pub(crate) struct Page {
    title: String,
    section: Section,
    status: StatusCode,
    scripts: Vec<&'static str>,
    styles: Vec<&'static str>,
    /// Where the page learns that it is out of date.
    live: Option<String>,
    /// How often the page asks whether it is out of date, in seconds.
    refresh: Option<u32>,
    frames: Option<String>,
}

impl Page {
    pub(crate) fn new(title: impl Into<String>, section: Section) -> Self {
        Self {
            title: title.into(),
            section,
            status: StatusCode::OK,
            scripts: Vec::new(),
            styles: Vec::new(),
            live: None,
            refresh: None,
            frames: None,
        }
    }

    /// Loads a script of `assets`: a module if it is our own, a plain one if it is in `vendor`.
    pub(crate) fn script(mut self, name: &'static str) -> Self {
        self.scripts.push(name);
        self
    }

    /// Loads a style sheet of `assets`.
    pub(crate) fn style(mut self, name: &'static str) -> Self {
        self.styles.push(name);
        self
    }

    /// Loads the page again whenever the stream of events at `path` says `changed`. Only elements with `data-part` and an
    /// id are replaced.
    pub(crate) fn live(mut self, path: impl Into<String>) -> Self {
        self.live = Some(path.into());
        self
    }

    /// Like [`Self::live`], but every so many seconds.
    pub(crate) fn refresh(mut self, seconds: u32) -> Self {
        self.refresh = Some(seconds);
        self
    }

    /// Permits frames from this source, which must be another origin.
    pub(crate) fn frames(mut self, source: String) -> Self {
        self.frames = Some(source);
        self
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Renders it with this content.
    pub(crate) fn show(self, visit: &Visit, content: Markup) -> Response {
        let session = &visit.session;
        let body = html! {
            body data-csrf=(session.csrf) data-live=[&self.live] data-refresh=[self.refresh] {
                a .skip href="#main" { "Skip to content" }
                header .top {
                    a .brand href="/dashboard" { (logo()) span { "Isopod" } }
                    (navigation(self.section))
                    div .who {
                        span .team title="The team that you have signed in for" { (session.team) }
                        button .quiet type="button" data-theme-toggle aria-label="Switch between light and dark" { "◐" }
                        button .quiet type="button" data-help aria-label="Keyboard shortcuts" { "?" }
                        form method="post" action="/dashboard/sign-out" {
                            (csrf(visit))
                            button .quiet type="submit" { "Sign out" }
                        }
                    }
                }
                main #main tabindex="-1" {
                    div #flash role="status" aria-live="polite" {
                        @if let Some(sentence) = &visit.flash { p .notice { (sentence) } }
                    }
                    (content)
                }
                (help())
            }
        };
        let head = html! {
            @for style in &self.styles { link rel="stylesheet" href=(assets::url(style)); }
            @for script in &self.scripts {
                @if script.starts_with("vendor/") { script defer src=(assets::url(script)) {} }
                @else { script type="module" src=(assets::url(script)) {} }
            }
        };
        document(self.status, &self.title, head, body, self.frames.as_deref())
    }
}

/// The hidden field that every form of a page has.
pub(crate) fn csrf(visit: &Visit) -> Markup {
    html! { input type="hidden" name="csrf" value=(visit.session.csrf); }
}

/// A failure inside the frame of all pages.
pub(crate) fn failure(visit: &Visit, failure: &Failure) -> Response {
    let title = title_of(failure.status);
    Page::new(title, Section::Overview).status(failure.status).show(
        visit,
        html! {
            h1 { (title) }
            p .notice .bad role="alert" { (failure.message) }
            p { button type="button" data-back { "Go back" } }
        },
    )
}

/// A failure for somebody who has not signed in.
pub(crate) fn bare(failure: &Failure) -> Response {
    let title = title_of(failure.status);
    let body = html! {
        body .plain {
            main #main {
                div .brand { (logo()) span { "Isopod" } }
                h1 { (title) }
                p .notice .bad role="alert" { (failure.message) }
                p { a href="/dashboard" { "To the dashboard" } }
            }
        }
    };
    document(failure.status, title, html! {}, body, None)
}

fn title_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "That didn't work",
        403 => "Not allowed",
        404 => "Not found",
        409 => "Not possible now",
        429 => "Too many requests",
        _ => "Something went wrong",
    }
}

/// A whole document. `frames` is the source of frames that it may show.
pub(crate) fn document(status: StatusCode, title: &str, head: Markup, body: Markup, frames: Option<&str>) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Isopod" }
                link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                link rel="stylesheet" href=(assets::url("style.css"));
                // Not a module, so that the colors are right before the first paint.
                script src=(assets::url("theme.js")) {}
                script type="module" src=(assets::url("app.js")) {}
                (head)
            }
            (body)
        }
    };
    let mut response = (status, axum::response::Html(document.into_string())).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy(frames));
    response
}

/// What a page may load: only from this server, nothing inline, and frames only from the given source.
pub(crate) fn policy(frames: Option<&str>) -> HeaderValue {
    let frames = frames.unwrap_or("'none'");
    let text = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
         form-action 'self'; frame-src {frames}; frame-ancestors 'none'; base-uri 'none'"
    );
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"))
}

fn navigation(current: Section) -> Markup {
    html! {
        nav aria-label="Main" {
            @for section in Section::ALL {
                a href=(section.path()) data-key=(section.key()) aria-current=[(section == current).then_some("page")] {
                    (section.title())
                }
            }
        }
    }
}

fn help() -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keyboard shortcuts" }
            dl .keys {
                div { dt { kbd { "/" } } dd { "Search" } }
                @for section in Section::ALL {
                    div { dt { kbd { "g" } " " kbd { (section.key()) } } dd { (section.title()) } }
                }
                div { dt { kbd { "?" } } dd { "This list" } }
            }
            form method="dialog" { button type="submit" { "Close" } }
        }
    }
}

/// The mark of the project: an isopod, seen from above.
pub(crate) fn logo() -> Markup {
    html! {
        svg .logo viewBox="0 0 32 32" width="26" height="26" aria-hidden="true" {
            g fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" {
                path d="M16 4c5.5 0 8.5 5 8.5 12S21.500 28 16 28 7.500 23 7.500 16 10.500 4 16 4Z" {}
                path d="M8.500 11h15M7.500 16h17M8.500 21h15" {}
                path d="M12 4.500 9 1.500M20 4.500l3-3M7.500 13.500 4 12M24.500 13.500 28 12M7.500 18.500 4 20M24.500 18.500 28 20" {}
            }
        }
    }
}
