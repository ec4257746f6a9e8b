//! What the server says when it starts: lines to paste where E2B code runs, how far the templates are that must be built
//! first, and that it is ready when creates work.

use std::cell::Cell;
use std::net::SocketAddr;

use isopod_node::{Node, Prepared, PreparedTemplate, TemplateProgress};
use isopod_store::FirstKey;

use super::settings::{Settings, TlsChoice};
use crate::commands::tls::{ServerTls, print_client_lines};
use crate::progress_bar::Bar;

pub(super) struct Greeting<'a> {
    pub(super) address: SocketAddr,
    pub(super) settings: &'a Settings,
    pub(super) key: &'a FirstKey,
    pub(super) local_tls: Option<&'a ServerTls>,
    /// Whether `isopod env` can run programs.
    pub(super) runs_programs: bool,
}

impl Greeting<'_> {
    /// Says "ready" when sandboxes of all templates that are prepared can be created. Until then it shows the progress.
    pub(super) async fn print(&self, node: &Node) {
        let bar = Bar::default();
        let was_begun = Cell::new(false);
        let on_step = |name: &'static str, step| {
            if !was_begun.replace(true) {
                self.print_lines("Isopod is starting.");
                say!("Building the template {name}, once. Creates of it wait until it is ready.\n");
            }
            show(&bar, name, &step);
        };
        let prepared = bar.while_working(node.wait_until_prepared(on_step)).await;
        drop(bar);
        match was_begun.get() {
            true => say!("Isopod is ready."),
            false => self.print_lines("Isopod is ready."),
        }
        prepared.iter().for_each(tell_what_lacks);
    }

    fn print_lines(&self, state: &str) {
        let (api, sandboxes) = self.urls();
        say!("{state} Paste this where your E2B code runs:\n");
        say!("  export E2B_API_KEY={}", self.shown_key());
        say!("  export E2B_API_URL={api}");
        say!("  export E2B_SANDBOX_URL={sandboxes}");
        say!("  export E2B_VOLUME_API_URL={api}\n");
        if let Some(tls) = self.local_tls {
            print_client_lines(&tls.authority, &tls.bundle);
        }
        if self.runs_programs {
            say!("Or let a program find it by itself, whatever its SDK: isopod env -- python app.py\n");
        }
    }

    /// Where clients of this machine reach the API.
    pub(super) fn api_url(&self) -> String {
        self.urls().0
    }

    fn shown_key(&self) -> &str {
        match self.key {
            FirstKey::Made(key) => key.0.as_str(),
            FirstKey::Given if self.settings.api_key.is_some() => "(the key you gave)",
            _ => "(a key from an earlier start; make another with: isopod key create --local)",
        }
    }

    /// A certificate that was given is for names below the domain; everything else goes by the address.
    fn urls(&self) -> (String, String) {
        let domain = self.settings.domain_at(self.address);
        match &self.settings.tls {
            TlsChoice::Given { .. } => (format!("https://api.{domain}"), format!("https://sandbox.{domain}")),
            TlsChoice::Local => self.same(format!("https://{}", self.reachable())),
            TlsChoice::Off | TlsChoice::Beside => self.same(format!("http://{}", self.reachable())),
        }
    }

    fn same(&self, url: String) -> (String, String) {
        (url.clone(), url)
    }

    /// "All addresses" is none that a client could dial.
    fn reachable(&self) -> String {
        match self.address.ip().is_unspecified() {
            true => format!("localhost:{}", self.address.port()),
            false => self.address.to_string(),
        }
    }
}

/// A bar for people, lines of the log for everybody else.
fn show(bar: &Bar, template: &str, step: &TemplateProgress) {
    if bar.is_on_terminal() {
        bar.show(step);
    } else {
        tracing::info!(template, done = step.done, total = step.total, "{}", step.message);
    }
}

fn tell_what_lacks(prepared: &PreparedTemplate) {
    let name = prepared.name;
    match &prepared.outcome {
        Prepared::Ready => {}
        Prepared::Reduced(reason) => say!(
            "The template {name} could not be built, so its sandboxes have only the Python of this machine. Restart the \
             server to try again. The reason: {reason}"
        ),
        Prepared::Failed(reason) => say!("{reason}. The next create tries again."),
    }
}
