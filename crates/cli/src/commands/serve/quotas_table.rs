//! `[quotas]` of the settings file: the tiers that admins give to teams.

use std::collections::BTreeMap;

use anyhow::bail;
use isopod_store::service::{QuotaLimits, Tiers};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QuotasTable {
    default_tier: Option<String>,
    tiers: BTreeMap<String, QuotaTable>,
}

/// The limits of one tier, or of every team, agent or task.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QuotaTable {
    pub(super) concurrent: Option<u32>,
    per_hour: Option<u32>,
    cpu_seconds_per_day: Option<u32>,
    pub(super) memory_mb: Option<u32>,
}

impl QuotasTable {
    pub(super) fn tiers(&self) -> anyhow::Result<Tiers> {
        if let Some(name) = self.tiers.keys().find(|name| !is_tier_name(name)) {
            bail!("quotas.tiers: {name:?} cannot be the name of a tier: use 1 to 128 letters, digits and -_.:@");
        }
        let tiers = Tiers {
            default: self.default_tier.clone(),
            limits: self.tiers.iter().map(|(name, table)| (name.clone(), table.limits())).collect(),
        };
        match &tiers.default {
            Some(name) if !tiers.limits.contains_key(name) => {
                bail!("quotas.default_tier is {name:?}, but there is no [quotas.tiers.{name}]")
            }
            _ => Ok(tiers),
        }
    }
}

/// A name that the API accepts.
fn is_tier_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    (1..=128).contains(&name.len()) && name.chars().all(is_plain)
}

impl QuotaTable {
    pub(super) fn limits(self) -> QuotaLimits {
        QuotaLimits {
            concurrent: self.concurrent,
            per_hour: self.per_hour,
            cpu_seconds_per_day: self.cpu_seconds_per_day,
            memory_mib: self.memory_mb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::SettingsFile;
    use super::*;

    fn tiers(text: &str) -> anyhow::Result<Tiers> {
        SettingsFile::parse(text)?.quotas.tiers()
    }

    #[test]
    fn a_tier_has_a_name_and_limits_and_a_default_must_be_one_of_them() {
        let text = "quotas.default_tier = 'free'\n[quotas.tiers.free]\nconcurrent = 2\n[quotas.tiers.enterprise]";
        let found = tiers(text).unwrap();
        assert_eq!(found.default.as_deref(), Some("free"));
        assert_eq!(found.limits["free"].concurrent, Some(2));
        assert_eq!(found.limits["enterprise"], QuotaLimits::default());
        assert_eq!(tiers("").unwrap(), Tiers::default());
        for wrong in [
            "quotas.default_tier = 'free'",
            "[quotas.tiers.'two words']",
            "[quotas.tiers.free]\nconcurent = 2",
            "[quotas.tiers.free]\nconcurrent = -1",
            "[quotas.tiers.free]\nconcurrent = 'many'",
            "[quotas]\ntiers = ['free']",
        ] {
            assert!(tiers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_tiers_in_the_docs_can_be_pasted() {
        let page = include_str!("../../../../../docs/service.md");
        let example = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let example = example.into_iter().find(|example| example.contains("[quotas")).unwrap();
        let found = tiers(example).unwrap();
        assert_eq!(found.limits.keys().collect::<Vec<_>>(), ["enterprise", "free", "pro"]);
    }
}
