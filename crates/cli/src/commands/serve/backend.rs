//! Where the sandboxes of the service come from. The key of a remote server comes from the environment alone: a command
//! line can be read by everyone on the machine, and a settings file is easily shared.

use anyhow::{Context, bail};
use isopod_client::sandbox::ConfigError;
use isopod_client::{Client, ClientConfig, Connector, Trust};
use isopod_service::backend::RemoteBackend;

use super::file::BackendTable;
use crate::args::{BackendKind, ServeArgs};
use crate::commands::remote::is_this_machine;
use crate::env_names;
use crate::failure::Hint;

/// E2B's cloud.
const DEFAULT_URL: &str = "https://api.e2b.app";
/// Its sandboxes are found below this domain.
const DEFAULT_DOMAIN: &str = "e2b.app";

/// Which backend, without its key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BackendChoice {
    Local,
    Remote { url: String, sandbox_url: Option<String>, ca_file: Option<std::path::PathBuf> },
}

pub(super) fn choose_backend(args: &ServeArgs, file: &BackendTable) -> anyhow::Result<BackendChoice> {
    let url = args.backend_url.clone().or_else(|| file.url.clone());
    let sandbox_url = args.backend_sandbox_url.clone().or_else(|| file.sandbox_url.clone());
    match args.backend.or(file.kind).unwrap_or(BackendKind::Local) {
        BackendKind::Local if url.is_some() || sandbox_url.is_some() => {
            bail!("an address of a backend was given, but the backend is not remote")
        }
        BackendKind::Local => Ok(BackendChoice::Local),
        BackendKind::Remote => {
            let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
            let sandbox_url = sandbox_url.or_else(|| is_this_machine(&url).then(|| url.clone()));
            Ok(BackendChoice::Remote { url, sandbox_url, ca_file: file.ca_file.clone() })
        }
    }
}

impl BackendChoice {
    /// None for the server's own node.
    pub(super) fn open(&self) -> anyhow::Result<Option<RemoteBackend>> {
        self.with_key(std::env::var(env_names::E2B_API_KEY).ok())
    }

    fn with_key(&self, key: Option<String>) -> anyhow::Result<Option<RemoteBackend>> {
        let Self::Remote { url, sandbox_url, ca_file } = self else { return Ok(None) };
        let Some(api_key) = key.filter(|key| !key.is_empty()) else {
            return Err(Hint::new("the remote backend needs a key", "set E2B_API_KEY in the server's environment"));
        };
        if url.starts_with("http://") && !is_this_machine(url) {
            tracing::warn!(url, "the key of the remote backend crosses the network without encryption");
        }
        let mut trust = Trust::system();
        if let Some(path) = ca_file {
            let text = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
            trust = trust.and_pem(&text).with_context(|| format!("could not use {}", path.display()))?;
        }
        let domain = Some(domain_of(url));
        let config = ClientConfig { api_url: url.clone(), api_key, sandbox_url: sandbox_url.clone(), domain };
        let client = Client::with_connector(config, Connector::tls(trust)).map_err(refused)?;
        Ok(Some(RemoteBackend::new(client)))
    }
}

/// Servers say their domain; for those that do not, it is what follows `api.`.
fn domain_of(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
    host.strip_prefix("api.").unwrap_or(DEFAULT_DOMAIN).to_owned()
}

fn refused(error: ConfigError) -> anyhow::Error {
    match error {
        ConfigError::ApiKey => Hint::because(
            "the key of the remote backend cannot be used",
            error,
            "set E2B_API_KEY as it was given, without quotes or spaces",
        ),
        other => anyhow::Error::new(other).context("the remote backend cannot be used"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(backend: Option<BackendKind>, url: Option<&str>) -> ServeArgs {
        ServeArgs { backend, backend_url: url.map(str::to_owned), ..ServeArgs::default() }
    }

    fn choose(args: &ServeArgs) -> anyhow::Result<BackendChoice> {
        choose_backend(args, &BackendTable::default())
    }

    #[test]
    fn the_servers_own_node_is_the_default_and_takes_no_address() {
        assert_eq!(choose(&args(None, None)).unwrap(), BackendChoice::Local);
        assert!(choose(&args(None, Some("http://127.0.0.1:3000"))).is_err());
        assert!(BackendChoice::Local.with_key(None).unwrap().is_none());
    }

    #[test]
    fn a_remote_backend_needs_a_key_and_a_good_address() {
        let cloud = choose(&args(Some(BackendKind::Remote), None)).unwrap();
        let expected = BackendChoice::Remote { url: DEFAULT_URL.to_owned(), sandbox_url: None, ca_file: None };
        assert_eq!(cloud, expected);
        assert!(cloud.with_key(None).is_err() && cloud.with_key(Some(String::new())).is_err());
        assert!(cloud.with_key(Some("two\nlines".to_owned())).is_err());
        let remote = cloud.with_key(Some("e2b_secret".to_owned())).unwrap().unwrap();
        assert!(!format!("{remote:?}").contains("e2b_secret"), "keys are not printed");
        let wrong = choose(&args(Some(BackendKind::Remote), Some("not a url"))).unwrap();
        assert!(wrong.with_key(Some("e2b_secret".to_owned())).is_err());
    }

    #[test]
    fn what_is_typed_comes_before_the_file_and_a_server_of_this_machine_has_one_address() {
        let file = BackendTable {
            kind: Some(BackendKind::Remote),
            url: Some("https://api.box.example".into()),
            ..BackendTable::default()
        };
        let BackendChoice::Remote { url, sandbox_url, .. } = choose_backend(&args(None, None), &file).unwrap() else {
            panic!("not remote")
        };
        assert_eq!((url.as_str(), sandbox_url), ("https://api.box.example", None));
        let typed = choose_backend(&args(None, Some("http://127.0.0.1:4000")), &file).unwrap();
        let BackendChoice::Remote { url, sandbox_url, .. } = typed else { panic!("not remote") };
        assert_eq!((url.as_str(), sandbox_url.as_deref()), ("http://127.0.0.1:4000", Some("http://127.0.0.1:4000")));
    }

    #[test]
    fn sandboxes_are_looked_for_beside_the_api() {
        assert_eq!(domain_of("https://api.box.example/"), "box.example");
        assert_eq!(domain_of("http://127.0.0.1:3000"), DEFAULT_DOMAIN);
    }
}
