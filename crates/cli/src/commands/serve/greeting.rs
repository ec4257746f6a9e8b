//! What the server says when it is ready: lines to paste where E2B code runs.

use std::net::SocketAddr;

use isopod_store::FirstKey;

use super::settings::{Settings, TlsChoice};
use crate::commands::tls::{ServerTls, print_client_lines};

pub(super) struct Greeting<'a> {
    pub(super) address: SocketAddr,
    pub(super) settings: &'a Settings,
    pub(super) key: &'a FirstKey,
    pub(super) local_tls: Option<&'a ServerTls>,
    /// Whether `isopod env` can run programs.
    pub(super) runs_programs: bool,
}

impl Greeting<'_> {
    pub(super) fn print(&self) {
        let (api, sandboxes) = self.urls();
        say!("Isopod is ready. Paste this where your E2B code runs:\n");
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
