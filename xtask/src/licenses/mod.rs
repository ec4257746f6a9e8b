//! `cargo xtask licenses`: checks that every crate in the program has a license and a source that `policy.rs` allows.
//!
//! It reads what cargo knows and needs no network. Known vulnerabilities need a database from the network, and so a
//! program of their own: CONTRIBUTING.md says which.

mod policy;
mod spdx;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::dependencies::{Dependencies, list};
use policy::{ALLOWED, BANNED, EXCEPTIONS, Exception, ONLY_ONCE, REGISTRY};
use spdx::Expression;

pub(crate) fn licenses() -> Result<(), String> {
    let objections = objections(&Dependencies::load()?, EXCEPTIONS);
    match objections.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("{}\nxtask/src/licenses/policy.rs has what is allowed, with reasons", objections.join("\n")))
        }
    }
}

/// What is wrong, one line for each.
fn objections(program: &Dependencies, exceptions: &[Exception]) -> Vec<String> {
    let members: Vec<&Value> = list(&program.metadata["workspace_members"]).collect();
    let mut found = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in program.packages().filter(|package| program.is_built(package)) {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        versions.entry(text("name")).or_default().push(text("version"));
        found.extend(objection_to_license(package, exceptions).map(|reason| format!("{name}: {reason}")));
        let is_own = members.contains(&&package["id"]);
        if !is_own && text("source") != REGISTRY {
            let source = if package["source"].is_null() { "a directory outside the workspace" } else { text("source") };
            found.push(format!("{name}: comes from {source}, and not from crates.io"));
        }
    }
    for (name, reason) in BANNED.iter().filter(|(name, _)| versions.contains_key(name)) {
        found.push(format!("{name} is banned: {reason}"));
    }
    for (name, reason) in ONLY_ONCE {
        if let Some(several @ [_, _, ..]) = versions.get(name).map(Vec::as_slice) {
            found.push(format!("{name} is there in versions {}: {reason}", several.join(", ")));
        }
    }
    let is_unused = |exception: &&Exception| !versions.contains_key(exception.name);
    found.extend(exceptions.iter().filter(is_unused).map(|exception| {
        format!("{} has an exception ({}), but is not part of the program", exception.name, exception.reason)
    }));
    found
}

fn objection_to_license(package: &Value, exceptions: &[Exception]) -> Option<String> {
    let license = package["license"].as_str().unwrap_or_default();
    let is_excepted = |exception: &Exception| package["name"] == exception.name && license == exception.license;
    if exceptions.iter().any(is_excepted) {
        return None;
    }
    if license.is_empty() {
        return Some("its manifest names no license".to_owned());
    }
    match Expression::parse(license) {
        Ok(expression) if expression.is_allowed(ALLOWED) => None,
        Ok(_) => Some(format!("its license, {license}, is not allowed")),
        Err(reason) => Some(format!("its license, {license:?}, cannot be understood: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, version: &str, license: Value, source: Value) -> Value {
        let id = format!("{name}@{version}");
        json!({ "id": id, "name": name, "version": version, "license": license, "source": source })
    }

    fn check(packages: &[Value], exceptions: &[Exception]) -> Vec<String> {
        let metadata = json!({ "packages": packages, "workspace_members": ["isopod@1.0.0"] });
        let lines = packages.iter().map(|package| {
            format!("{} v{}\n", package["name"].as_str().unwrap(), package["version"].as_str().unwrap())
        });
        // What only tests use is in the metadata, but not in the tree.
        let tree: String = lines.filter(|line| !line.starts_with("proptest")).collect();
        objections(&Dependencies::of(metadata, &tree), exceptions)
    }

    #[test]
    fn licenses_sources_and_duplicates_are_objected_to() {
        let packages = [
            package("isopod", "1.0.0", json!("Apache-2.0"), Value::Null),
            package("good", "1.0.0", json!("MIT/Apache-2.0"), json!(REGISTRY)),
            package("copyleft", "1.0.0", json!("GPL-3.0-only AND MIT"), json!(REGISTRY)),
            package("silent", "1.0.0", Value::Null, json!(REGISTRY)),
            package("odd", "1.0.0", json!("see LICENSE"), json!(REGISTRY)),
            package("forked", "1.0.0", json!("MIT"), json!("git+https://example.com/forked#1")),
            package("beside", "1.0.0", json!("MIT"), Value::Null),
            package("openssl-sys", "1.0.0", json!("MIT"), json!(REGISTRY)),
            package("rustls", "0.22.0", json!("MIT"), json!(REGISTRY)),
            package("rustls", "0.23.0", json!("MIT"), json!(REGISTRY)),
            package("syn", "1.0.0", json!("MIT"), json!(REGISTRY)),
            package("syn", "2.0.0", json!("MIT"), json!(REGISTRY)),
            package("proptest", "1.0.0", json!("GPL-3.0-only"), json!(REGISTRY)),
        ];
        let found = check(&packages, &[]);
        let wanted = [
            "copyleft 1.0.0: its license, GPL-3.0-only AND MIT, is not allowed",
            "silent 1.0.0: its manifest names no license",
            "odd 1.0.0: its license, \"see LICENSE\", cannot be understood",
            "forked 1.0.0: comes from git+https://example.com/forked#1",
            "beside 1.0.0: comes from a directory outside the workspace",
            "openssl-sys is banned",
            "rustls is there in versions 0.22.0, 0.23.0",
        ];
        assert_eq!(found.len(), wanted.len(), "{found:#?}");
        for (found, wanted) in found.iter().zip(wanted) {
            assert!(found.starts_with(wanted), "{found}");
        }
    }

    #[test]
    fn an_exception_ends_when_the_license_changes_or_the_crate_is_gone() {
        let exception =
            |license| Exception { name: "silent", license, reason: "its file is the text of the MIT license" };
        let silent = |license: Value| [package("silent", "1.0.0", license, json!(REGISTRY))];
        assert!(check(&silent(Value::Null), &[exception("")]).is_empty());
        assert_eq!(check(&silent(json!("GPL-3.0-only")), &[exception("")]).len(), 1);
        assert_eq!(check(&[], &[exception("")]).len(), 1);
    }
}
