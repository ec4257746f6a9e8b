//! The Python wheel: `uvx isopod serve`, or `pip install isopod`. It carries the program as a script, and the package in
//! `python/isopod`.

use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::archive::Entry;
use super::binary::NEWEST_GLIBC;
use super::payload::Payload;
use super::{LICENSE, SUMMARY, VERSION};
use crate::program::root;

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let (major, minor) = NEWEST_GLIBC;
    let tag = format!("py3-none-manylinux_{major}_{minor}_x86_64");
    let info = format!("isopod-{VERSION}.dist-info");
    let mut entries = package_files()?;
    entries.push(Entry::program(format!("isopod-{VERSION}.data/scripts/isopod"), payload.program.clone()));
    if let Some(criu) = &payload.criu {
        // Among the scripts, because installers make those executable.
        entries.push(Entry::program(format!("isopod-{VERSION}.data/scripts/isopod-criu"), criu.program.clone()));
        entries.push(Entry::file(format!("{info}/licenses/criu/COPYING"), criu.license.clone()));
    }
    entries.push(Entry::file(format!("{info}/METADATA"), metadata(payload)));
    entries.push(Entry::file(format!("{info}/WHEEL"), wheel_file(&tag)));
    entries.push(Entry::file(format!("{info}/entry_points.txt"), ENTRY_POINTS));
    entries.push(Entry::file(format!("{info}/licenses/LICENSE"), payload.license.clone()));
    let record = Entry::file(format!("{info}/RECORD"), record(&entries, &info));
    entries.push(record);
    Ok((format!("isopod-{VERSION}-{tag}.whl"), pack(&entries)?))
}

/// What the package needs. `isopod` itself needs none of it, and the package loads it on first use.
const REQUIREMENTS: [&str; 4] =
    ["e2b-code-interpreter>=2.9.0,<3", "httpx>=0.27,<1", "pandas>=2; extra == 'data'", "pyarrow>=14; extra == 'data'"];

/// Makes pytest find the plugin.
const ENTRY_POINTS: &str = "[pytest11]\nisopod = isopod.pytest_plugin\n";

/// The files of the Python package.
fn package_files() -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    add_directory(&root().join("python/isopod"), "isopod", &mut entries)?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// Adds the modules in a directory and below it, under this name.
fn add_directory(directory: &Path, name: &str, entries: &mut Vec<Entry>) -> Result<(), String> {
    let listed = fs::read_dir(directory).map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    for entry in listed {
        let path = entry.map_err(|error| error.to_string())?.path();
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{name}/{file}");
        if path.is_dir() && file != "__pycache__" {
            add_directory(&path, &name, entries)?;
        } else if path.is_file() && (file.ends_with(".py") || file == "py.typed") {
            let contents = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            entries.push(Entry::file(name, contents));
        }
    }
    Ok(())
}

fn metadata(payload: &Payload) -> String {
    let requirements: String = REQUIREMENTS.iter().map(|name| format!("Requires-Dist: {name}\n")).collect();
    format!(
        "Metadata-Version: 2.4\nName: isopod\nVersion: {VERSION}\nSummary: {SUMMARY}\nLicense-Expression: {LICENSE}\n\
         License-File: LICENSE\nRequires-Python: >=3.10\nProvides-Extra: data\n{requirements}\
         Description-Content-Type: text/markdown\n\n{}",
        payload.readme
    )
}

fn wheel_file(tag: &str) -> String {
    format!("Wheel-Version: 1.0\nGenerator: cargo-xtask-dist {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n")
}

/// Hash and size of every file; installers compare them. The record itself has neither.
fn record(entries: &[Entry], info: &str) -> String {
    let mut record = String::new();
    for entry in entries {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&entry.contents));
        let _ = writeln!(record, "{},sha256={hash},{}", entry.path, entry.contents.len());
    }
    record + &format!("{info}/RECORD,,\n")
}

/// Without times: zip's are local, and begin in 1980.
fn pack(entries: &[Entry]) -> Result<Vec<u8>, String> {
    let failed = |error: zip::result::ZipError| format!("cannot write a wheel: {error}");
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in entries {
        let options = SimpleFileOptions::default();
        let options = options.compression_method(CompressionMethod::Deflated).unix_permissions(entry.mode);
        archive.start_file(entry.path.as_str(), options).map_err(failed)?;
        archive.write_all(&entry.contents).map_err(|error| failed(error.into()))?;
    }
    Ok(archive.finish().map_err(failed)?.into_inner())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use zip::ZipArchive;

    use super::*;

    /// Nothing but the program.
    fn payload() -> Payload {
        Payload {
            program: b"the program".to_vec(),
            program_path: "isopod".into(),
            criu: None,
            man_pages: Vec::new(),
            bash: String::new(),
            zsh: String::new(),
            fish: String::new(),
            unit: String::new(),
            license: Vec::new(),
            readme: "Requires-Dist: is no requirement in the text".to_owned(),
            changelog: Vec::new(),
            time: 0,
            revision: String::new(),
            userlands: None,
        }
    }

    /// Reads files of a wheel as an installer does.
    fn reader(wheel: Vec<u8>) -> impl FnMut(&str) -> String {
        let mut archive = ZipArchive::new(Cursor::new(wheel)).unwrap();
        move |path: &str| {
            let mut text = String::new();
            archive.by_name(path).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    }

    #[test]
    fn a_wheel_needs_the_official_sdk_and_httpx_and_brings_a_plugin_and_the_program() {
        let (name, wheel) = write(&payload()).unwrap();
        assert!(name.starts_with(&format!("isopod-{VERSION}-py3-none-manylinux")), "{name}");
        let mut read = reader(wheel);

        let metadata = read(&format!("isopod-{VERSION}.dist-info/METADATA"));
        let (head, _) = metadata.split_once("\n\n").unwrap();
        let required = head.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
        let (optional, required): (Vec<&str>, Vec<&str>) = required.partition(|line| line.contains("extra =="));
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let names = |lines: &[&str]| -> BTreeSet<String> {
            lines.iter().map(|line| line.chars().take_while(|letter| is_name(*letter)).collect()).collect()
        };
        assert_eq!(names(&required), BTreeSet::from(["e2b-code-interpreter", "httpx"].map(str::to_owned)));
        assert_eq!(names(&optional), BTreeSet::from(["pandas", "pyarrow"].map(str::to_owned)));

        let entry_points = read(&format!("isopod-{VERSION}.dist-info/entry_points.txt"));
        assert_eq!(entry_points.lines().collect::<Vec<_>>(), ["[pytest11]", "isopod = isopod.pytest_plugin"]);
        assert!(read("isopod/pytest_plugin.py").contains("def sandbox("));
        // The command is the program itself; an entry point of its name would take its place.
        assert_eq!(read(&format!("isopod-{VERSION}.data/scripts/isopod")), "the program");
    }

    #[test]
    fn the_package_has_all_its_modules_and_nothing_else() {
        let files = package_files().unwrap();
        let has = |path: &str| files.iter().any(|file| file.path == path);
        for path in ["isopod/__init__.py", "isopod/py.typed", "isopod/compat/roma.py", "isopod/_files/server.py"] {
            assert!(has(path), "{path}");
        }
        assert!(files.iter().all(|file| !file.path.contains("__pycache__") && !file.path.contains("tests")));
    }

    #[test]
    fn the_record_has_a_line_for_every_file_and_one_for_itself() {
        let record = record(&[Entry::file("isopod/__init__.py", *b"")], "isopod-1.dist-info");
        assert_eq!(
            record,
            "isopod/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nisopod-1.dist-info/RECORD,,\n"
        );
    }
}
