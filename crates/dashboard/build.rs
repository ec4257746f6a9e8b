//! Compresses the files below `assets` and lists them in `assets.rs`. Their URLs contain a hash of all of them, so that
//! browsers keep them until one changes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

/// What browsers are told about a file, by its ending. Files with other endings are not served.
const TYPES: [(&str, &str); 3] =
    [("css", "text/css; charset=utf-8"), ("js", "text/javascript; charset=utf-8"), ("svg", "image/svg+xml")];

fn main() {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("assets");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=assets");
    let mut files = Vec::new();
    find(&root, &root, &mut files);
    files.sort();
    let (mut table, mut hash) = (String::new(), Sha256::new());
    for (number, (name, content_type)) in files.iter().enumerate() {
        let content = fs::read(root.join(name)).expect("the file was just listed");
        hash.update(name.as_bytes());
        hash.update(&content);
        let packed = out.join(format!("{number}.gz"));
        fs::write(&packed, compress(&content)).expect("OUT_DIR can be written");
        let _ = writeln!(
            table,
            "    Asset {{ name: {name:?}, content_type: {content_type:?}, packed: include_bytes!({packed:?}) }},"
        );
    }
    let version: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{version}\"");
    let source = format!(
        "const VERSION: &str = {version:?};\nconst TAG: &str = {tag:?};\nconst ASSETS: &[Asset] = &[\n{table}];\n"
    );
    fs::write(out.join("assets.rs"), source).expect("OUT_DIR can be written");
}

fn find(root: &Path, dir: &Path, files: &mut Vec<(String, &'static str)>) {
    for entry in fs::read_dir(dir).expect("the directory of the assets").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        if path.is_dir() {
            find(root, &path, files);
            continue;
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if let Some((_, content_type)) = TYPES.iter().find(|(known, _)| *known == ending) {
            let name = path.strip_prefix(root).expect("it is below").to_str().expect("our names are UTF-8");
            files.push((name.to_owned(), content_type));
        }
    }
}

fn compress(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).expect("writing to memory");
    encoder.finish().expect("writing to memory")
}
