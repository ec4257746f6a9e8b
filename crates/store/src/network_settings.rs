//! The network settings of a sandbox in the words of the API, and the policy that a node makes of them.

use isopod_wire::{Cidr, NetworkPolicy, NetworkPolicyError};
use serde::{Deserialize, Serialize};

/// As asked for, so that it can be shown again in the same words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSettings {
    /// Whether everyone who knows the address may reach the sandbox's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// The `Host` that services inside see; `${PORT}` stands for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
}

impl NetworkSettings {
    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the node is to enforce.
    pub fn policy(&self, allow_internet: Option<bool>) -> Result<NetworkPolicy, NetworkPolicyError> {
        let parse = |texts: &[String]| texts.iter().map(|text| text.parse::<Cidr>()).collect::<Result<Vec<_>, _>>();
        Ok(NetworkPolicy {
            deny_internet: allow_internet == Some(false),
            allow_out: parse(&self.allow_out)?,
            deny_out: parse(&self.deny_out)?,
        })
    }
}
