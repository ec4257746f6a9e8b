//! Tiers: named sets of limits in the settings, for teams that an admin puts into them.

use std::collections::BTreeMap;

use super::quota::QuotaLimits;
use super::team_quota::TeamQuota;

/// The tiers of the settings. By default, there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    /// The tier of teams that have none.
    pub default: Option<String>,
    /// The limits of each tier. What a tier does not limit is not limited.
    pub limits: BTreeMap<String, QuotaLimits>,
}

/// The limits of a team, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveQuota {
    /// The tier that counts. It is not the team's own if the settings no longer have that.
    pub tier: Option<String>,
    pub limits: QuotaLimits,
}

impl Tiers {
    /// The limits of a team with this quota: its own, else those of its tier. `None` if it has neither, so that it has
    /// those that all teams have.
    pub fn limits_of(&self, quota: &TeamQuota) -> Option<EffectiveQuota> {
        let tier = self.known(quota.tier.as_ref()).or_else(|| self.known(self.default.as_ref()));
        if tier.is_none() && quota.limits == QuotaLimits::default() {
            return None;
        }
        let (tier, of_tier) = tier.unzip();
        Some(EffectiveQuota { tier: tier.cloned(), limits: quota.limits.or(of_tier.copied().unwrap_or_default()) })
    }

    fn known(&self, tier: Option<&String>) -> Option<(&String, &QuotaLimits)> {
        self.limits.get_key_value(tier?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concurrent(most: u32) -> QuotaLimits {
        QuotaLimits { concurrent: Some(most), ..QuotaLimits::default() }
    }

    fn tiers(default: Option<&str>) -> Tiers {
        let pro = QuotaLimits { per_hour: Some(100), ..concurrent(20) };
        let limits = BTreeMap::from([("free".to_owned(), concurrent(2)), ("pro".to_owned(), pro)]);
        Tiers { default: default.map(str::to_owned), limits }
    }

    fn quota(tier: &str, limits: QuotaLimits) -> TeamQuota {
        TeamQuota { tier: Some(tier.to_owned()), limits }
    }

    #[test]
    fn own_limits_come_before_the_tier_and_the_tier_before_the_default() {
        let of = |default, quota: &TeamQuota| tiers(default).limits_of(quota).map(|found| (found.tier, found.limits));
        let free = || Some("free".to_owned());
        assert_eq!(of(None, &TeamQuota::default()), None, "it has what all teams have");
        assert_eq!(of(Some("free"), &TeamQuota::default()), Some((free(), concurrent(2))));
        let pro = of(Some("free"), &quota("pro", concurrent(30))).unwrap();
        assert_eq!(pro, (Some("pro".to_owned()), QuotaLimits { per_hour: Some(100), ..concurrent(30) }));
        let alone = TeamQuota { tier: None, limits: concurrent(7) };
        assert_eq!(of(None, &alone), Some((None, concurrent(7))));
    }

    #[test]
    fn a_tier_that_the_settings_no_longer_have_gives_way_to_the_default() {
        let gone = quota("gold", QuotaLimits::default());
        let found = tiers(Some("free")).limits_of(&gone).unwrap();
        assert_eq!((found.tier.as_deref(), found.limits), (Some("free"), concurrent(2)));
        assert_eq!(tiers(None).limits_of(&gone), None);
    }
}
