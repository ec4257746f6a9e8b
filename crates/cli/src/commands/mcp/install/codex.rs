//! A table in Codex's `config.toml`: everything else stays as it is, with its comments.

use toml::{Table, Value};

use super::NAME;
use super::entry::Entry;
use crate::failure::Hint;

const SECTION: &str = "mcp_servers";

pub(super) fn merge(before: Option<&str>, entry: &Entry) -> anyhow::Result<String> {
    let before = before.unwrap_or_default();
    let old = parse(before)?;
    let after = with_table(before, &entry.toml());
    // However the file was written: nothing but our entry may have changed.
    let new = parse(&after)?;
    let wanted = parse(&entry.toml())?;
    match others(old) == others(new.clone()) && new[SECTION][NAME] == wanted[SECTION][NAME] {
        true => Ok(after),
        false => Err(not_understood()),
    }
}

fn parse(text: &str) -> anyhow::Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        Hint::because(
            "the configuration cannot be changed safely",
            error,
            "--print shows the entry, to be added by hand",
        )
    })
}

fn not_understood() -> anyhow::Error {
    Hint::new("the configuration cannot be changed safely", "--print shows the entry, to be added by hand")
}

/// Puts our table in the place of an older one, or at the end.
fn with_table(before: &str, ours: &str) -> String {
    let mut kept = String::new();
    let mut is_ours = false;
    for line in before.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            is_ours = is_header_of_ours(line);
        }
        if !is_ours {
            kept.push_str(line);
        }
    }
    let kept = kept.trim_end();
    match kept.is_empty() {
        true => ours.to_owned(),
        false => format!("{kept}\n\n{ours}"),
    }
}

/// `[mcp_servers.isopod]` and what is below it, such as `[mcp_servers.isopod.env]`.
fn is_header_of_ours(line: &str) -> bool {
    let name: String = line.trim().chars().filter(|character| !matches!(character, '[' | ' ' | '"' | '\'')).collect();
    let name = name.split(']').next().unwrap_or_default();
    name.strip_prefix("mcp_servers.isopod").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn others(mut file: Table) -> Table {
    if let Some(Value::Table(servers)) = file.get_mut(SECTION) {
        servers.remove(NAME);
        if servers.is_empty() {
            file.remove(SECTION);
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_tables_and_comments_stay() {
        let before = "# mine\nmodel = \"x\"\n\n[mcp_servers.isopod]\ncommand = \"old\"\n[mcp_servers.isopod.env]\nA = \"b\"\n\n\
            [mcp_servers.other] # theirs\ncommand = \"y\"\n";
        let after = merge(Some(before), &Entry::sample(None)).unwrap();
        assert!(
            after.starts_with(
                "# mine\nmodel = \"x\"\n\n[mcp_servers.other] # theirs\ncommand = \"y\"\n\n[mcp_servers.isopod]\n"
            ),
            "{after}"
        );
        assert!(!after.contains("old") && !after.contains("A = \"b\""), "{after}");
        assert_eq!(merge(Some(&after), &Entry::sample(None)).unwrap(), after, "once is enough");
        assert_eq!(merge(None, &Entry::sample(None)).unwrap(), Entry::sample(None).toml());
    }

    #[test]
    fn what_is_written_otherwise_is_left_alone() {
        for bad in [
            "mcp_servers = { other = { command = \"y\" } }\n",
            "nonsense",
            "x = \"\"\"\n[mcp_servers.isopod]\nin text\n\"\"\"\n",
        ] {
            assert!(merge(Some(bad), &Entry::sample(None)).is_err(), "{bad}");
        }
    }
}
