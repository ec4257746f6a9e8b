//! The operator's default mounts: which execution's files a sandbox sees if its creator names none.

use std::collections::BTreeMap;

use isopod_store::is_workspace_id;

/// Executions by team, by template, or for every team. By default, there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultMounts(BTreeMap<String, String>);

/// Why the settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefaultMountError {
    #[error(
        "{0:?} cannot be the id of an execution: use 1 to 128 letters, digits, '.', '_' and '-', not starting with a dot"
    )]
    Id(String),
    #[error("{value:?} would be the same files for every team of {key:?}: put {{team}} into it")]
    Shared { key: String, value: String },
}

/// The key for every team.
pub const EVERY_TEAM: &str = "*";
const TEMPLATE: &str = "template:";
/// Stands for the team's id in an execution's id.
const TEAM: &str = "{team}";
/// Instead of an execution's id.
const NOTHING: &str = "none";

impl DefaultMounts {
    /// Reads the operator's settings: executions by team, by `template:NAME`, and by `*` for every team.
    pub fn parse(table: BTreeMap<String, String>) -> Result<Self, DefaultMountError> {
        for (key, value) in &table {
            let is_of_one_team = key != EVERY_TEAM && !key.starts_with(TEMPLATE);
            if value == NOTHING {
                continue;
            }
            if !is_workspace_id(&value.replace(TEAM, "team")) {
                return Err(DefaultMountError::Id(value.clone()));
            }
            if !is_of_one_team && !value.contains(TEAM) {
                return Err(DefaultMountError::Shared { key: key.clone(), value: value.clone() });
            }
        }
        Ok(Self(table))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The execution for a sandbox of this team and template. The template's comes before the team's.
    pub fn execution_of(&self, team: &str, templates: &[&str]) -> Option<String> {
        let of_template = templates.iter().find_map(|name| self.0.get(&format!("{TEMPLATE}{name}")));
        let found = of_template.or_else(|| self.0.get(team)).or_else(|| self.0.get(EVERY_TEAM))?;
        (found != NOTHING).then(|| found.replace(TEAM, &plain(team)))
    }
}

/// A team's id may have characters that the id of an execution may not have. Two teams that become one this way do not
/// share files: the execution belongs to the team that used it first.
fn plain(team: &str) -> String {
    team.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> Result<DefaultMounts, DefaultMountError> {
        let owned = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        DefaultMounts::parse(owned.collect())
    }

    #[test]
    fn the_template_comes_before_the_team_and_the_team_before_all() {
        let entries = [("*", "all-{team}"), ("t1", "research"), ("t2", "none"), ("template:roma", "roma-{team}")];
        let mounts = parse(&entries).unwrap();
        let of = |team, templates: &[&str]| mounts.execution_of(team, templates);
        assert_eq!(of("t3", &["base"]).as_deref(), Some("all-t3"));
        assert_eq!(of("a:b@c", &[]).as_deref(), Some("all-a_b_c"));
        assert_eq!(of("t1", &["base"]).as_deref(), Some("research"));
        assert_eq!(of("t2", &["base"]), None);
        assert_eq!(of("t2", &["tpl1", "roma"]).as_deref(), Some("roma-t2"));
        assert_eq!(parse(&[]).unwrap().execution_of("t1", &["base"]), None);
    }

    #[test]
    fn ids_that_lead_out_and_files_that_teams_would_share_are_refused() {
        for wrong in ["../x", "", ".x", "a/b", "{other}"] {
            assert_eq!(parse(&[("t1", wrong)]), Err(DefaultMountError::Id(wrong.to_owned())), "{wrong}");
        }
        for key in ["*", "template:roma"] {
            assert!(matches!(parse(&[(key, "shared")]), Err(DefaultMountError::Shared { .. })), "{key}");
        }
        assert!(parse(&[("*", "none")]).is_ok());
    }
}
