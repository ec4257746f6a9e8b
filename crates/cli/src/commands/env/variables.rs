//! The variables of a command: the key, the domain, whom to trust, and nothing that would lead an SDK elsewhere.

use std::ffi::OsString;
use std::process::Command;

use super::plan::{Plan, TRUST_VARIABLES, named_bundle};
use crate::env_names;

/// With one of these an SDK would go by an address, or to the machine's own ports.
const MISLEADING: [&str; 4] =
    [env_names::E2B_API_URL, env_names::E2B_SANDBOX_URL, env_names::E2B_VOLUME_API_URL, env_names::E2B_DEBUG];
/// Programs read the one or the other case.
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// Changes to the variables that the command would have had.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    set: Vec<(&'static str, OsString)>,
    remove: Vec<&'static str>,
}

impl Changes {
    pub(super) fn apply(self, command: &mut Command) {
        for name in self.remove {
            command.env_remove(name);
        }
        command.envs(self.set);
    }
}

pub(super) fn of_command(key: &str, domain: &str, plan: &Plan, variable: impl Fn(&str) -> Option<OsString>) -> Changes {
    // E2B's own domain is named too: packages of 1.0 would go to e2b.dev.
    let set = vec![(env_names::E2B_API_KEY, key.into()), (env_names::E2B_DOMAIN, domain.into())];
    let mut changes = Changes { set, remove: MISLEADING.to_vec() };
    for name in TRUST_VARIABLES {
        let bundle = named_bundle(&variable, name).unwrap_or_else(|| plan.system_bundle.clone());
        changes.set.push((name, bundle.into()));
    }
    // A proxy would ask the real E2B, and show it the key.
    if PROXIES.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty())) {
        changes.set.extend(NO_PROXY.map(|name| (name, without_proxy(variable(name), &plan.domains))));
    }
    changes
}

/// Some programs want a dot before a domain, others want none.
fn without_proxy(before: Option<OsString>, domains: &[String]) -> OsString {
    let mut list = before.unwrap_or_default();
    for domain in domains {
        if !list.is_empty() {
            list.push(",");
        }
        list.push(format!("{domain},.{domain}"));
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use super::*;

    fn plan() -> Plan {
        Plan {
            address: Ipv4Addr::LOCALHOST,
            domains: vec!["e2b.app".to_owned()],
            authority: String::new(),
            bundles: Vec::new(),
            system_bundle: "/etc/bundle.pem".into(),
            has_docker: false,
        }
    }

    fn changes(domain: &str, before: &[(&str, &str)]) -> HashMap<&'static str, String> {
        let before: HashMap<&str, OsString> =
            before.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        let changes = of_command("e2b_key", domain, &plan(), |name| before.get(name).cloned());
        assert!(MISLEADING.iter().all(|name| changes.remove.contains(name)));
        changes.set.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn a_command_has_the_key_and_the_trust_and_the_domain() {
        let plain = changes("e2b.app", &[]);
        assert_eq!(plain["E2B_API_KEY"], "e2b_key");
        assert_eq!(plain["SSL_CERT_FILE"], "/etc/bundle.pem");
        assert_eq!(plain["E2B_DOMAIN"], "e2b.app");
        assert!(!plain.contains_key("NO_PROXY"));
        assert_eq!(changes("box.example", &[])["E2B_DOMAIN"], "box.example");
    }

    #[test]
    fn a_file_that_a_variable_names_stays_and_one_that_is_not_there_is_replaced() {
        let own = tempfile::NamedTempFile::new().unwrap();
        let path = own.path().to_str().unwrap();
        let set = changes("e2b.app", &[("SSL_CERT_FILE", path), ("CURL_CA_BUNDLE", "/is/not/there")]);
        assert_eq!((set["SSL_CERT_FILE"].as_str(), set["CURL_CA_BUNDLE"].as_str()), (path, "/etc/bundle.pem"));
    }

    #[test]
    fn no_proxy_sees_what_is_meant_for_the_server() {
        let set = changes("e2b.app", &[("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", "localhost")]);
        assert_eq!(set["NO_PROXY"], "localhost,e2b.app,.e2b.app");
        assert_eq!(set["no_proxy"], "e2b.app,.e2b.app");
    }
}
