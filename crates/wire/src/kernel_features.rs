//! Parts of the kernel that a sandbox has only if the operator lets its team have them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The metadata of a new sandbox that asks for some of them, separated by commas.
pub const ALLOW: &str = "isopod.allow";
/// Stands for every team in the operator's settings.
const EVERY_TEAM: &str = "*";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelFeature {
    /// Namespaces inside the sandbox: bubblewrap, Chromium's own sandbox.
    Userns,
    /// `/dev/fuse` and mounting: sshfs, s3fs.
    Fuse,
}

impl KernelFeature {
    const NAMES: &'static [(&'static str, Self)] = &[("userns", Self::Userns), ("fuse", Self::Fuse)];
}

impl fmt::Display for KernelFeature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, feature)| feature == self).map_or("", |(name, _)| name);
        formatter.write_str(name)
    }
}

impl FromStr for KernelFeature {
    type Err = FeatureError;

    fn from_str(text: &str) -> Result<Self, FeatureError> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, feature)| *feature).ok_or_else(|| FeatureError::Unknown(text.to_owned()))
    }
}

/// Which of them a sandbox has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelFeatures {
    pub userns: bool,
    pub fuse: bool,
}

impl KernelFeatures {
    /// Whether it is a sandbox like most.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn has(self, feature: KernelFeature) -> bool {
        match feature {
            KernelFeature::Userns => self.userns,
            KernelFeature::Fuse => self.fuse,
        }
    }
}

impl FromIterator<KernelFeature> for KernelFeatures {
    fn from_iter<T: IntoIterator<Item = KernelFeature>>(features: T) -> Self {
        features.into_iter().fold(Self::default(), |all, feature| match feature {
            KernelFeature::Userns => Self { userns: true, ..all },
            KernelFeature::Fuse => Self { fuse: true, ..all },
        })
    }
}

/// Why a sandbox does not get a feature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error("there is no kernel feature {0:?}; there are userns and fuse")]
    Unknown(String),
    #[error("this server does not let your team have the kernel feature {0}; its operator can, with [sandbox.allow]")]
    NotGranted(KernelFeature),
    /// Root could put a file system of its own in the way of the workspace.
    #[error("a sandbox with the kernel feature fuse cannot have volumes or a workspace")]
    FuseWithMounts,
}

/// What the operator lets teams have, by their id, and what sandboxes of some templates have without asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGrants {
    teams: BTreeMap<String, KernelFeatures>,
    /// By a template's name or id.
    templates: BTreeMap<String, KernelFeatures>,
}

impl FeatureGrants {
    /// Reads the operator's settings: names of features by team, where `*` means every team.
    pub fn parse(teams: &BTreeMap<String, Vec<String>>) -> Result<Self, FeatureError> {
        Ok(Self { teams: parse_each(teams)?, templates: BTreeMap::new() })
    }

    /// Adds the operator's settings of templates: names of features by a template's name or id.
    pub fn with_templates(self, templates: &BTreeMap<String, Vec<String>>) -> Result<Self, FeatureError> {
        Ok(Self { templates: parse_each(templates)?, ..self })
    }

    /// What a team's sandboxes of a template with these names have, as the metadata that would ask for it. `None` for nothing.
    /// What the team may not have is left out: its template may have the name by chance.
    pub fn of_template<'a>(&self, team: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let given: Vec<KernelFeatures> =
            names.into_iter().filter_map(|name| self.templates.get(name).copied()).collect();
        let has = |feature| given.iter().any(|features| features.has(feature)) && self.has(team, feature);
        let granted = KernelFeature::NAMES.iter().filter(|(_, feature)| has(*feature)).map(|(name, _)| *name);
        let granted: Vec<&str> = granted.collect();
        (!granted.is_empty()).then(|| granted.join(","))
    }

    /// What the metadata of a team's new sandbox asks for, if the team may have all of it.
    pub fn check(&self, team: &str, metadata: &BTreeMap<String, String>) -> Result<KernelFeatures, FeatureError> {
        let wanted = metadata.get(ALLOW).map_or("", String::as_str);
        let names = wanted.split(',').map(str::trim).filter(|name| !name.is_empty());
        let check = |name: &str| {
            let feature = name.parse()?;
            if self.has(team, feature) { Ok(feature) } else { Err(FeatureError::NotGranted(feature)) }
        };
        names.map(check).collect()
    }

    fn has(&self, team: &str, feature: KernelFeature) -> bool {
        [team, EVERY_TEAM].iter().filter_map(|team| self.teams.get(*team)).any(|features| features.has(feature))
    }
}

fn parse_each(settings: &BTreeMap<String, Vec<String>>) -> Result<BTreeMap<String, KernelFeatures>, FeatureError> {
    let parse = |(key, names): (&String, &Vec<String>)| {
        let features = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        Ok((key.clone(), features))
    };
    settings.iter().map(parse).collect()
}

/// Whether the metadata of a new sandbox asks for `/dev/fuse`, be it granted or not.
pub fn asks_for_fuse(metadata: &BTreeMap<String, String>) -> bool {
    let wanted = metadata.get(ALLOW).map_or("", String::as_str);
    wanted.split(',').any(|name| name.trim().parse() == Ok(KernelFeature::Fuse))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(teams: &[(&str, &str)]) -> FeatureGrants {
        let teams =
            teams.iter().map(|(team, names)| ((*team).to_owned(), names.split(',').map(str::to_owned).collect()));
        FeatureGrants::parse(&teams.collect()).unwrap()
    }

    fn asked(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(ALLOW.to_owned(), text.to_owned())])
    }

    #[test]
    fn nobody_gets_a_feature_that_the_operator_did_not_grant() {
        let refused = Err(FeatureError::NotGranted(KernelFeature::Fuse));
        assert_eq!(FeatureGrants::default().check("a", &asked("fuse")), refused);
        let some = grants(&[("a", "userns"), ("b", "userns,fuse")]);
        assert_eq!(some.check("a", &asked("userns, fuse")), refused);
        assert_eq!(some.check("c", &asked("fuse")), refused);
        assert_eq!(some.check("b", &asked("everything")), Err(FeatureError::Unknown("everything".to_owned())));
    }

    #[test]
    fn a_team_gets_what_it_asks_for_and_was_granted() {
        let both = KernelFeatures { userns: true, fuse: true };
        let some = grants(&[("a", "fuse"), ("*", "userns")]);
        assert_eq!(some.check("a", &asked("userns,fuse")), Ok(both));
        assert_eq!(some.check("b", &asked("userns")), Ok(KernelFeatures { fuse: false, ..both }));
        assert_eq!(some.check("a", &BTreeMap::new()), Ok(KernelFeatures::default()));
        assert_eq!(some.check("a", &asked("")), Ok(KernelFeatures::default()));
    }

    #[test]
    fn a_template_gives_its_sandboxes_what_their_team_may_have() {
        let templates = BTreeMap::from([
            ("browser".to_owned(), vec!["userns".to_owned()]),
            ("t1".to_owned(), vec!["fuse".to_owned(), "userns".to_owned()]),
        ]);
        let some = grants(&[("a", "userns,fuse"), ("b", "fuse")]).with_templates(&templates).unwrap();
        assert_eq!(some.of_template("a", ["browser"]).as_deref(), Some("userns"));
        assert_eq!(some.of_template("a", ["t1", "browser"]).as_deref(), Some("userns,fuse"));
        assert_eq!(some.of_template("b", ["t1", "browser"]).as_deref(), Some("fuse"));
        for (team, name) in [("b", "browser"), ("c", "t1"), ("a", "other")] {
            assert_eq!(some.of_template(team, [name]), None, "{team} {name}");
        }
    }

    #[test]
    fn settings_name_features_that_exist() {
        let wrong = BTreeMap::from([("a".to_owned(), vec!["bpf".to_owned()])]);
        let unknown = Err(FeatureError::Unknown("bpf".to_owned()));
        assert_eq!(FeatureGrants::parse(&wrong), unknown);
        assert_eq!(FeatureGrants::default().with_templates(&wrong), unknown);
    }
}
