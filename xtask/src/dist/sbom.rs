//! The software bill of materials: every crate in the program, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::VERSION;
use super::payload::Payload;
use crate::dependencies::{Dependencies, list, reference};

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let mut document = document(&Dependencies::load()?)?;
    if let (Some(_), Some(components)) = (&payload.criu, document["components"].as_array_mut()) {
        components.push(criu_component());
    }
    let document = serde_json::to_vec_pretty(&document).map_err(|error| error.to_string())?;
    Ok((format!("isopod-{VERSION}.cdx.json"), document))
}

fn document(program: &Dependencies) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Value> =
        program.packages().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let (metadata, is_built) = (&program.metadata, |package: &Value| program.is_built(package));
    let program = packages.values().find(|package| package["name"] == "isopod");
    let program = program.ok_or("the workspace has no package isopod")?;
    let libraries = packages.values().filter(|package| package["name"] != "isopod" && is_built(package));
    let mut components: Vec<Value> = libraries.map(|package| component(package, "library")).collect();
    components.sort_by_key(|component| component["purl"].to_string());
    let mut dependencies: Vec<Value> = list(&metadata["resolve"]["nodes"])
        .filter_map(|node| {
            let package = packages.get(node["id"].as_str()?).filter(|package| is_built(package))?;
            let used = dependencies_of(node).filter_map(|id| packages.get(id)).filter(|package| is_built(package));
            let used: BTreeSet<String> = used.map(|package| reference(package)).collect();
            Some(json!({ "ref": reference(package), "dependsOn": used }))
        })
        .collect();
    dependencies.sort_by_key(|dependency| dependency["ref"].to_string());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(program, "application") },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The ids of what a package uses, without what only its tests use.
fn dependencies_of(node: &Value) -> impl Iterator<Item = &str> {
    let is_built = |dependency: &&Value| list(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev");
    list(&node["deps"]).filter(is_built).filter_map(|dependency| dependency["pkg"].as_str())
}

/// A program beside this one.
fn criu_component() -> Value {
    let reference = format!("pkg:generic/criu@{}", crate::criu::VERSION);
    json!({
        "type": "application",
        "bom-ref": reference,
        "name": "criu",
        "version": crate::criu::VERSION,
        "purl": reference,
        "licenses": [{ "expression": "GPL-2.0-only" }],
    })
}

fn component(package: &Value, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    });
    if let Some(license) = package["license"].as_str() {
        // Old crates separate alternatives by a slash, which SPDX doesn't know.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_use_is_left_out() {
        let package =
            |name: &str, license: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": license });
        let uses = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("isopod", "Apache-2.0"), package("tar", "MIT/Apache-2.0"), package("cc", "MIT"), package("proptest", "MIT")],
            "resolve": { "nodes": [
                { "id": "isopod", "deps": [uses("tar", Value::Null), uses("proptest", json!("dev"))] },
                { "id": "tar", "deps": [uses("cc", json!("build"))] },
                { "id": "cc", "deps": [] },
                { "id": "proptest", "deps": [] },
            ] },
        });
        let tree = "isopod v1.0.0 (/src/cli)\ntar v1.0.0\ncc v1.0.0\ncc v1.0.0 (*)\n";
        let document = document(&Dependencies::of(metadata, tree)).unwrap();
        let names: Vec<_> = list(&document["components"]).map(|component| component["name"].clone()).collect();
        assert_eq!(names, ["cc", "tar"]);
        assert_eq!(document["dependencies"][1]["dependsOn"], json!(["pkg:cargo/tar@1.0.0"]));
        assert_eq!(document["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["purl"], "pkg:cargo/isopod@1.0.0");
    }
}
