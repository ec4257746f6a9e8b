//! The network settings of requests. Unsupported settings are refused rather than ignored. This includes unknown
//! fields, because one of them may be a restriction.

use std::collections::BTreeMap;

use http::HeaderValue;
use isopod_api::ApiError;
use isopod_store::NetworkSettings;
use isopod_wire::{Cidr, PRIVATE_NETWORKS};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

/// `network` of a create request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Network)]
pub(super) struct NetworkBody {
    /// Whether everybody who knows the address can reach the sandbox's ports.
    allow_public_traffic: Option<bool>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    allow_out: Option<Vec<String>>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    deny_out: Option<Vec<String>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    dns_servers: Option<Vec<String>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    egress_proxy: Option<Value>,
    /// The `Host` header that services inside see. `${PORT}` stands for the port.
    mask_request_host: Option<String>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    https_ports: Option<Vec<u16>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    rules: Option<Value>,
    /// Refused, because an unknown field could be a restriction.
    #[serde(flatten)]
    #[schema(ignore)]
    unknown: BTreeMap<String, Value>,
}

/// The body of `PUT …/network`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkUpdate {
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    allow_out: Option<Vec<String>>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    deny_out: Option<Vec<String>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    dns_servers: Option<Vec<String>>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    egress_proxy: Option<Value>,
    /// Parsed in order to refuse it as unsupported.
    #[schema(ignore)]
    rules: Option<Value>,
    /// Refused, because an unknown field could be a restriction.
    #[serde(flatten)]
    #[schema(ignore)]
    unknown: BTreeMap<String, Value>,
}

impl NetworkBody {
    /// `opened` lists the private networks that the operator lets sandboxes reach.
    pub(super) fn checked(self, opened: &[Cidr]) -> Result<NetworkSettings, ApiError> {
        refuse_unknown(&self.unknown)?;
        refuse_unsupported(&self.egress_proxy, &self.rules, &self.dns_servers)?;
        if self.https_ports.is_some_and(|ports| !ports.is_empty()) {
            return Err(ApiError::unsupported("network.httpsPorts"));
        }
        let mask = self.mask_request_host.filter(|mask| !mask.is_empty());
        if mask.as_ref().is_some_and(|mask| mask.len() > 255 || HeaderValue::from_str(mask).is_err()) {
            return Err(ApiError::bad_request("network.maskRequestHost is not a host name"));
        }
        Ok(NetworkSettings {
            allow_public_traffic: self.allow_public_traffic,
            allow_out: checked_allow(self.allow_out, opened)?,
            deny_out: checked_list(self.deny_out, "denyOut")?,
            mask_request_host: mask,
        })
    }
}

impl NetworkUpdate {
    /// `opened` lists the private networks that the operator lets sandboxes reach.
    pub(super) fn checked(self, opened: &[Cidr]) -> Result<NetworkSettings, ApiError> {
        refuse_unknown(&self.unknown)?;
        refuse_unsupported(&self.egress_proxy, &self.rules, &self.dns_servers)?;
        Ok(NetworkSettings {
            allow_out: checked_allow(self.allow_out, opened)?,
            deny_out: checked_list(self.deny_out, "denyOut")?,
            ..NetworkSettings::default()
        })
    }
}

fn refuse_unknown(fields: &BTreeMap<String, Value>) -> Result<(), ApiError> {
    let unknown = fields.iter().find(|(_, value)| !value.is_null());
    unknown.map_or(Ok(()), |(name, _)| Err(ApiError::unsupported(&format!("network.{name}"))))
}

fn refuse_unsupported(
    egress_proxy: &Option<Value>,
    rules: &Option<Value>,
    dns_servers: &Option<Vec<String>>,
) -> Result<(), ApiError> {
    let is_set = |value: &Option<Value>| value.as_ref().is_some_and(|value| value != &serde_json::json!({}));
    if is_set(egress_proxy) {
        return Err(ApiError::unsupported("network.egressProxy"));
    }
    if is_set(rules) {
        return Err(ApiError::unsupported("network.rules"));
    }
    // They matter only for rules by domain.
    if dns_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
        return Err(ApiError::unsupported("network.dnsServers"));
    }
    Ok(())
}

/// Refuses networks that are closed to sandboxes, because allowing them would have no effect.
fn checked_allow(texts: Option<Vec<String>>, opened: &[Cidr]) -> Result<Vec<String>, ApiError> {
    let texts = checked_list(texts, "allowOut")?;
    let is_within = |networks: &[Cidr], network: Cidr| networks.iter().any(|outer| outer.contains(network));
    let closed = texts.iter().find(|text| {
        let network = text.parse::<Cidr>();
        network.is_ok_and(|network| is_within(&PRIVATE_NETWORKS, network) && !is_within(opened, network))
    });
    match closed {
        None => Ok(texts),
        Some(network) => Err(ApiError::bad_request(format!(
            "network.allowOut: {network} is a private network, which sandboxes can reach only if the operator allows it with \
             `isopod serve --sandbox-networks`"
        ))),
    }
}

fn checked_list(texts: Option<Vec<String>>, name: &str) -> Result<Vec<String>, ApiError> {
    let texts = texts.unwrap_or_default();
    for text in &texts {
        let Err(error) = text.parse::<Cidr>() else { continue };
        if name == "allowOut" && looks_like_a_domain(text) {
            return Err(ApiError::unsupported("a rule by domain name in network.allowOut"));
        }
        return Err(ApiError::bad_request(format!("network.{name}: {error}")));
    }
    Ok(texts)
}

fn looks_like_a_domain(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let labels = || name.split('.');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    labels().all(is_label) && labels().next_back().is_some_and(|last| last.bytes().any(|b| b.is_ascii_alphabetic()))
}
