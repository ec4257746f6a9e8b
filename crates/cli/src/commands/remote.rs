//! The server that the verbs speak with: which one, in whose name, and its refusals in words that help.

use std::net::IpAddr;

use anyhow::Context;
use isopod_client::sandbox::ConfigError;
use isopod_client::{ApiError, BaseUrl, Client, ClientConfig, Connector, TransportError, Trust};

use crate::args::ServerArgs;
use crate::failure::Hint;

/// The server of this machine.
pub(super) const LOCAL: &str = "http://127.0.0.1:3000";

/// A client for the server that was named.
pub(super) fn client(args: &ServerArgs) -> anyhow::Result<Client> {
    let mut trust = Trust::system();
    if let Some(path) = &args.ca_file {
        let text = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        trust = trust.and_pem(&text).with_context(|| format!("could not use {}", path.display()))?;
    }
    Client::with_connector(config(args)?, Connector::tls(trust)).map_err(|error| match error {
        ConfigError::ApiKey => Hint::because(
            "the key cannot be used",
            error,
            "paste it as the server printed it, without quotes or spaces",
        ),
        other => other.into(),
    })
}

fn config(args: &ServerArgs) -> anyhow::Result<ClientConfig> {
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    let Some(api_key) = given(&args.api_key) else {
        return Err(Hint::new(
            "there is no API key",
            "set E2B_API_KEY to the key that isopod serve printed; if it is lost: sudo isopod key create --local",
        ));
    };
    let domain = given(&args.domain);
    let api_url = api_url(args);
    let sandbox_url = given(&args.sandbox_url).or_else(|| is_this_machine(&api_url).then(|| api_url.clone()));
    Ok(ClientConfig { api_url, api_key, sandbox_url, domain })
}

/// The URL of the API.
pub(super) fn api_url(args: &ServerArgs) -> String {
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    given(&args.api_url)
        .or_else(|| given(&args.domain).map(|domain| format!("https://api.{domain}")))
        .unwrap_or_else(|| LOCAL.to_owned())
}

/// On this machine one port is the API and the way into sandboxes.
pub(super) fn is_this_machine(url: &str) -> bool {
    let Ok(url) = url.parse::<BaseUrl>() else { return false };
    let host = url.origin().host;
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An error of a call, with advice where there is some.
pub(super) fn explain(error: ApiError) -> anyhow::Error {
    let advice = match &error {
        ApiError::Unauthorized { .. } => "check E2B_API_KEY; a new key is made with: sudo isopod key create --local",
        ApiError::NotFound { .. } => "isopod ls shows the sandboxes that there are",
        ApiError::RateLimited { .. } => "isopod kill ends sandboxes that are not needed",
        ApiError::Transport(error) => transport_advice(error),
        _ => return error.into(),
    };
    match error {
        ApiError::Transport(cause) => Hint::because("cannot speak with the server", cause, advice),
        refusal => Hint::new(refusal.to_string(), advice),
    }
}

fn transport_advice(error: &TransportError) -> &'static str {
    let words = isopod_wire::error_chain(error);
    if words.contains("certificate") {
        return "give the server's authority with --ca-file; isopod tls ca prints that of this machine's server";
    }
    if words.contains("InvalidContentType") || words.contains("corrupt message") {
        return "the server speaks plain http: write http:// instead of https://";
    }
    "is it running? isopod serve starts one here; E2B_API_URL says where another one is"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ServerArgs {
        ServerArgs { api_key: Some("k".to_owned()), api_url: None, sandbox_url: None, domain: None, ca_file: None }
    }

    #[test]
    fn without_a_key_nothing_is_tried() {
        assert!(config(&ServerArgs { api_key: None, ..args() }).is_err());
        assert!(config(&ServerArgs { api_key: Some(String::new()), ..args() }).is_err());
    }

    #[test]
    fn addresses_follow_the_sdks_and_default_to_this_machine() {
        let of = |args: ServerArgs| config(&args).map(|config| (config.api_url, config.sandbox_url)).unwrap();
        assert_eq!(of(args()), (LOCAL.to_owned(), Some(LOCAL.to_owned())));
        let domain = Some("box.example".to_owned());
        assert_eq!(of(ServerArgs { domain, ..args() }), ("https://api.box.example".to_owned(), None));
        let api_url = Some("https://api.box.example".to_owned());
        assert_eq!(of(ServerArgs { api_url: api_url.clone(), ..args() }), (api_url.clone().unwrap(), None));
        let sandbox_url = Some("https://edge.box.example".to_owned());
        assert_eq!(
            of(ServerArgs { api_url: api_url.clone(), sandbox_url: sandbox_url.clone(), ..args() }).1,
            sandbox_url
        );
    }
}
