//! The network settings of a sandbox in the form of the API, and the policy that a node enforces for them.

use isopod_wire::{Cidr, NetworkPolicy, NetworkPolicyError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings as the client sent them, so that the API can return them unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSettings {
    /// Whether anyone who knows the address may reach the sandbox's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub allow_public_traffic: Option<bool>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    /// IPv4 addresses or networks, such as 10.0.0.0/8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// The `Host` header that services in the sandbox see. `${PORT}` stands for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mask_request_host: Option<String>,
}

impl NetworkSettings {
    /// Whether no setting is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The policy that the node enforces.
    pub fn policy(&self, allow_internet: Option<bool>) -> Result<NetworkPolicy, NetworkPolicyError> {
        let parse = |texts: &[String]| texts.iter().map(|text| text.parse::<Cidr>()).collect::<Result<Vec<_>, _>>();
        Ok(NetworkPolicy {
            deny_internet: allow_internet == Some(false),
            allow_out: parse(&self.allow_out)?,
            deny_out: parse(&self.deny_out)?,
        })
    }
}
