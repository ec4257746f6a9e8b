//! `cargo xtask dist`: builds the packages that people install, and the checksums and the list of components that go with
//! them. Names and versions come from the workspace's `Cargo.toml`.

mod archive;
mod binary;
mod checksums;
mod criu;
mod deb;
mod npm;
mod oci;
mod options;
mod payload;
mod sbom;
mod scratch;
mod tarball;
mod wheel;

use std::fs;
use std::path::PathBuf;

use criu::Criu;
use options::Options;
use payload::Payload;

use crate::steps::Steps;

/// The version of every package.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One sentence for every package's description.
const SUMMARY: &str = "E2B on your own machine: sandboxes for AI agents in one binary";

const LICENSE: &str = "Apache-2.0";

type Write = fn(&Payload) -> Result<(String, Vec<u8>), String>;

const PACKAGES: [(&str, Write); 7] = [
    ("tarball", tarball::write),
    ("deb", deb::write),
    ("wheel", wheel::write),
    ("npm", npm::write),
    ("oci", oci::write),
    ("sbom", sbom::write),
    ("criu-source", criu::write),
];

pub(crate) fn dist(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let mut steps = Steps::default();
    let program = match &options.binary {
        Some(program) => program.clone(),
        None => steps.time("build isopod", binary::build)?,
    };
    let criu = match options.with_criu {
        true => Some(steps.time("CRIU", Criu::built).map_err(without_criu)?),
        false => None,
    };
    let payload = steps
        .time("man pages, completions and the unit", || Payload::of(&program, criu, options.userlands.as_deref()))?;
    let directory = &options.output;
    fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let mut written = Vec::new();
    let skipped = oci::obstacle().filter(|_| !options.names("oci"));
    for (name, write) in PACKAGES.iter().filter(|(name, _)| options.wants(name)) {
        if *name == "criu-source" && payload.criu.is_none() {
            continue;
        }
        if let (&"oci", Some(reason)) = (name, skipped) {
            eprintln!("\n== oci: skipped; {reason}");
            continue;
        }
        let file = steps.time(name, || save(directory, write(&payload)?))?;
        written.push(file);
    }
    checksums::write(directory, &written)?;
    for file in &written {
        eprintln!("{}", file.display());
    }
    Ok(())
}

fn without_criu(reason: String) -> String {
    format!("{reason}\nhint: packages without memory snapshots are made with --without-criu")
}

fn save(directory: &std::path::Path, (name, contents): (String, Vec<u8>)) -> Result<PathBuf, String> {
    let path = directory.join(name);
    fs::write(&path, contents).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}
