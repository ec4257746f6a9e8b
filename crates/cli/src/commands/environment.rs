//! `-e`: environment variables for what runs inside.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// `NAME=VALUE`, or `NAME` for the value that it has here.
pub(super) fn environment(given: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    for text in given {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (text.as_str(), std::env::var(text).with_context(|| format!("{text} is not set here"))?),
        };
        if name.is_empty() {
            bail!("{text:?} has no name before the =");
        }
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}
