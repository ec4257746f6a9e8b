//! The software bill of materials: every crate in the program, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::VERSION;
use super::payload::Payload;
use crate::program::{cargo, output_of};

pub(super) fn write(_: &Payload) -> Result<(String, Vec<u8>), String> {
    let metadata = output_of(&mut cargo(&[
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let document = serde_json::to_vec_pretty(&document(&metadata)?).map_err(|error| error.to_string())?;
    Ok((format!("isopod-{VERSION}.cdx.json"), document))
}

fn document(metadata: &Value) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let graph: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let root = packages.iter().find(|(_, package)| package["name"] == "isopod");
    let (root, program) = root.ok_or("the workspace has no package isopod")?;
    let used = used_by(root, &graph);
    let components: Vec<Value> =
        used.iter().filter(|id| *id != root).filter_map(|id| Some(component(packages.get(id)?, "library"))).collect();
    let dependencies: Vec<Value> = used
        .iter()
        .filter_map(|id| {
            let uses = dependencies_of(graph.get(id)?).filter_map(|used| Some(reference(packages.get(used)?)));
            Some(json!({ "ref": reference(packages.get(id)?), "dependsOn": uses.collect::<BTreeSet<_>>() }))
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(program, "application") },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Everything that is built for the program: what it uses and what builds it, without what only tests use.
fn used_by<'a>(root: &'a str, graph: &BTreeMap<&'a str, &'a Value>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([root]);
    let mut waiting = vec![root];
    while let Some(id) = waiting.pop() {
        let uses = graph.get(id).into_iter().flat_map(dependencies_of);
        waiting.extend(uses.filter(|used| found.insert(used)));
    }
    found
}

fn dependencies_of<'a>(node: &&'a Value) -> impl Iterator<Item = &'a str> + use<'a> {
    let is_built = |dependency: &&Value| list(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev");
    list(&node["deps"]).filter(is_built).filter_map(|dependency| dependency["pkg"].as_str())
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

fn reference(package: &Value) -> String {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
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
        let document = document(&metadata).unwrap();
        let names: Vec<_> = list(&document["components"]).map(|component| component["name"].clone()).collect();
        assert_eq!(names, ["cc", "tar"]);
        assert_eq!(document["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["purl"], "pkg:cargo/isopod@1.0.0");
    }
}
