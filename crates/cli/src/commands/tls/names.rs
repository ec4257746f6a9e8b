//! The names that a certificate is for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::bail;
use serde::{Deserialize, Serialize};

/// A domain with everything right below it, and other names and addresses of the server. This machine is always among
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Names {
    domains: BTreeSet<String>,
    hosts: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Names {
    pub(super) fn new(domain: &str, others: &[String]) -> anyhow::Result<Self> {
        let domain = domain.rsplit_once(':').map_or(domain, |(name, _port)| name);
        let mut names = Self {
            domains: BTreeSet::from([checked_domain(domain)?]),
            hosts: BTreeSet::from(["localhost".to_owned()]),
            addresses: BTreeSet::from([IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])]),
        };
        for other in others {
            match other.trim_matches(['[', ']']).parse() {
                Ok(address) => drop(names.addresses.insert(address)),
                Err(_) => {
                    check_name(other)?;
                    names.hosts.insert(other.to_ascii_lowercase());
                }
            }
        }
        Ok(names)
    }

    /// These domains, and not even this machine.
    pub(super) fn only(domains: &[String]) -> anyhow::Result<Self> {
        let domains = domains.iter().map(|domain| checked_domain(domain)).collect::<Result<_, _>>()?;
        Ok(Self { domains, hosts: BTreeSet::new(), addresses: BTreeSet::new() })
    }

    pub(super) fn covers(&self, wanted: &Self) -> bool {
        self.domains.is_superset(&wanted.domains)
            && self.hosts.is_superset(&wanted.hosts)
            && self.addresses.is_superset(&wanted.addresses)
    }

    /// All of both: who asked for a name before still needs it.
    pub(super) fn with(&self, more: &Self) -> Self {
        Self {
            domains: &self.domains | &more.domains,
            hosts: &self.hosts | &more.hosts,
            addresses: &self.addresses | &more.addresses,
        }
    }

    /// As they stand in the server's certificate.
    pub(super) fn in_certificate(&self) -> Vec<String> {
        let wildcards = self.domains.iter().flat_map(|domain| [domain.clone(), format!("*.{domain}")]);
        wildcards.chain(self.hosts.iter().cloned()).chain(self.addresses.iter().map(IpAddr::to_string)).collect()
    }

    /// Names that the authority may certify, with everything below them.
    pub(super) fn roots(&self) -> impl Iterator<Item = &String> {
        self.domains.iter().chain(&self.hosts)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }
}

/// A domain that has names below it, in lower case.
pub(in crate::commands) fn checked_domain(domain: &str) -> anyhow::Result<String> {
    let domain = domain.to_ascii_lowercase();
    check_name(&domain)?;
    if !domain.contains('.') {
        bail!("the domain {domain:?} needs a dot: programs refuse certificates for *.{domain}");
    }
    Ok(domain)
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 200 || !name.split('.').all(is_label) {
        bail!("{name:?} is no host name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_domain_is_refused() {
        for bad in ["", "localhost", "a b.c", "*.a.b", "-a.b", "a..b", "a.b/c", "a.b:x y"] {
            assert!(Names::new(bad, &[]).is_err() || bad == "a.b:x y", "{bad:?} was accepted");
        }
        assert!(Names::new("a.b", &["x y".to_owned()]).is_err());
    }

    #[test]
    fn this_machine_is_always_covered() {
        let names = Names::new("Isopod.localhost:3000", &["192.168.1.5".to_owned(), "box.example".to_owned()]).unwrap();
        let listed = names.in_certificate();
        for name in
            ["isopod.localhost", "*.isopod.localhost", "localhost", "127.0.0.1", "::1", "192.168.1.5", "box.example"]
        {
            assert!(listed.iter().any(|listed| listed == name), "{name} is not in {listed:?}");
        }
        assert!(names.covers(&Names::new("isopod.localhost", &[]).unwrap()));
        assert!(!names.covers(&Names::new("other.localhost", &[]).unwrap()));
    }
}
