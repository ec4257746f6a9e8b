//! Builds the guest, a static program for every sandbox, so that it can be embedded into the host binary.
//!
//! The same cargo builds it in a separate target directory, because the outer build holds the lock of the usual one.
//! Musl makes the smallest guest. If its target is missing, the script asks rustup to add it. If that fails (no rustup,
//! no network), the guest is linked statically with glibc, which needs only libc6-dev. `ISOPOD_GUEST_BINARY` names a
//! prebuilt guest to use instead.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const MUSL: &str = "x86_64-unknown-linux-musl";
const GLIBC: &str = "x86_64-unknown-linux-gnu";

fn main() {
    refuse_other_machines();
    println!("cargo:rerun-if-env-changed=ISOPOD_GUEST_BINARY");
    let root = workspace_root();
    for input in ["crates/guest", "crates/wire", "crates/positions", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    let guest = match env::var_os("ISOPOD_GUEST_BINARY") {
        Some(path) => PathBuf::from(path),
        None => build_guest(&root),
    };
    println!("cargo:rustc-env=ISOPOD_GUEST_PATH={}", guest.display());
}

/// Cargo may run this script before it compiles `isopod-wire`, which refuses with the same sentence. Without this, people
/// would read about a guest that can't be cross-compiled.
fn refuse_other_machines() {
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if (target("OS").as_str(), target("ARCH").as_str()) != ("linux", "x86_64") {
        println!(
            "cargo::error=Isopod runs on Linux on x86-64 only; other processors, such as arm64, are not supported yet"
        );
        std::process::exit(0);
    }
}

fn workspace_root() -> PathBuf {
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Path::new(&manifest).join("../..").canonicalize().expect("the crate lies two levels below the workspace")
}

fn build_guest(root: &Path) -> PathBuf {
    let target = if has_musl() || adds_musl() { MUSL } else { GLIBC };
    let target_dir = guest_target_dir();
    let profile = guest_profile();
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--package", "isopod-guest", "--profile", profile, "--target", target])
        .arg("--target-dir")
        .arg(&target_dir);
    // Flags of the outer build (a linter, coverage) must not reach the guest.
    for name in
        ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"]
    {
        cargo.env_remove(name);
    }
    if target == GLIBC {
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    }
    let status = cargo.status().expect("cannot start cargo");
    if !status.success() {
        println!(
            "cargo::error=the guest could not be built for {target}; if the errors below name a linker or the C library, \
             run: apt-get install gcc libc6-dev"
        );
        // Not 0: cargo would not show the compiler's errors.
        std::process::exit(1);
    }
    target_dir.join(target).join(profile).join("isopod-guest")
}

fn has_musl() -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let printed = Command::new(rustc).args(["--print", "target-libdir", "--target", MUSL]).output();
    printed.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Tries to add the target with rustup to the compiler that runs this build. Returns whether that worked.
fn adds_musl() -> bool {
    let failure = match start_rustup().and_then(Child::wait_with_output) {
        Ok(output) if output.status.success() && has_musl() => return true,
        Ok(output) => first_error(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => format!("cannot start rustup: {error}"),
    };
    println!(
        "cargo:warning=the guest is linked with glibc: the target {MUSL} is not installed and could not be added ({failure})"
    );
    false
}

/// Says so while it downloads, because it changes the toolchain of whoever builds.
fn start_rustup() -> std::io::Result<Child> {
    let mut rustup = Command::new("rustup");
    let started = rustup.args(["target", "add", MUSL]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    println!("cargo:warning=rustup adds the target {MUSL}, for which the guest is built");
    Ok(started)
}

fn first_error(stderr: &str) -> String {
    let line = stderr.lines().find(|line| line.starts_with("error")).or(stderr.lines().next());
    line.unwrap_or("rustup gave no reason").to_owned()
}

/// Packages have a guest that takes longer to build.
fn guest_profile() -> &'static str {
    if outer_profile_dir().ends_with("dist") { "guest-dist" } else { "guest" }
}

/// The directory is next to the outer target directory, so that the other profiles share one guest.
fn guest_target_dir() -> PathBuf {
    let target = outer_profile_dir().parent().expect("the directory of a profile is not the root").to_owned();
    target.join("guest-build")
}

/// `OUT_DIR` is `<target>/<profile>/build/<crate>/out`.
fn outer_profile_dir() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    out.ancestors().nth(3).expect("OUT_DIR lies three levels below the directory of the profile").to_owned()
}
