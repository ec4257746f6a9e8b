//! Builds the guest, a static program for every sandbox, so that it can be embedded into the host binary.
//!
//! It is built by the same cargo, for musl, into a target directory of its own: the outer build holds the lock of the
//! usual one. `ISOPOD_GUEST_BINARY` names a finished guest to use instead.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-musl";

fn main() {
    println!("cargo:rerun-if-env-changed=ISOPOD_GUEST_BINARY");
    let root = workspace_root();
    for input in ["crates/guest", "crates/wire", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    let guest = match env::var_os("ISOPOD_GUEST_BINARY") {
        Some(path) => PathBuf::from(path),
        None => build_guest(&root),
    };
    println!("cargo:rustc-env=ISOPOD_GUEST_PATH={}", guest.display());
    list_driver(&root.join("crates/guest/driver"));
}

/// Writes the Python files of the interpreter's driver as a list that the crate includes.
fn list_driver(driver: &Path) {
    let mut files = Vec::new();
    collect(driver, driver, &mut files);
    files.sort();
    let entry = |name: &String| format!("({name:?}, include_bytes!({:?})),\n", driver.join(name));
    let text = format!("&[\n{}]\n", files.iter().map(entry).collect::<String>());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(out.join("driver_files.rs"), text).expect("OUT_DIR can be written to");
}

fn collect(driver: &Path, directory: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("the driver's sources are in the repository") {
        let path = entry.expect("a directory can be read").path();
        let is_left_out = path.ends_with("tests") || path.ends_with("recipe") || path.ends_with("__pycache__");
        if path.is_dir() && !is_left_out {
            collect(driver, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            let relative = path.strip_prefix(driver).expect("it was found below");
            files.push(relative.to_str().expect("our names are ASCII").to_owned());
        }
    }
}

fn workspace_root() -> PathBuf {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Path::new(&manifest).join("../..").canonicalize().expect("the crate lies two levels below the workspace")
}

fn build_guest(root: &Path) -> PathBuf {
    let target_dir = guest_target_dir();
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--package", "isopod-guest", "--profile", "guest", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir);
    // Flags of the outer build (a linter, coverage) are not for the guest.
    for name in
        ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"]
    {
        cargo.env_remove(name);
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "the guest could not be built; is the target there? rustup target add {TARGET}");
    target_dir.join(TARGET).join("guest").join("isopod-guest")
}

/// Beside the outer target directory, so that all profiles share one guest.
fn guest_target_dir() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // OUT_DIR is <target>/<profile>/build/<crate>/out.
    let target = out.ancestors().nth(4).expect("OUT_DIR lies four levels below the target directory");
    target.join("guest-build")
}
