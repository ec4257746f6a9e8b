//! Lists the files of the code interpreter's driver, which become part of every template.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let driver = manifest.join("../guest/driver").canonicalize().expect("the driver is next to this crate");
    println!("cargo:rerun-if-changed={}", driver.display());
    list_driver(&driver);
}

/// Writes a list of the files of the interpreter's driver, which the crate includes: Python, and the programs that run cells
/// of Java and of JavaScript.
fn list_driver(driver: &Path) {
    let mut files = Vec::new();
    collect(driver, driver, &mut files);
    files.sort();
    let entry = |name: &String| format!("({name:?}, include_bytes!({:?})),\n", driver.join(name));
    let text = format!("&[\n{}]\n", files.iter().map(entry).collect::<String>());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(out.join("driver_files.rs"), text).expect("cannot write to OUT_DIR");
}

fn collect(driver: &Path, directory: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("the driver's sources are in the repository") {
        let path = entry.expect("cannot read the driver's directory").path();
        let is_left_out = path.ends_with("tests") || path.ends_with("recipe") || path.ends_with("__pycache__");
        if path.is_dir() && !is_left_out {
            collect(driver, &path, files);
        } else if path.extension().is_some_and(|extension| ["py", "java", "cjs"].iter().any(|own| extension == *own)) {
            let relative = path.strip_prefix(driver).expect("the path was found below the driver");
            files.push(relative.to_str().expect("our names are ASCII").to_owned());
        }
    }
}
