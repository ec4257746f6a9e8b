//! On a machine that Isopod doesn't support, the build ends with one sentence.

use std::path::Path;
use std::process::Command;

#[test]
fn a_build_for_another_machine_is_refused_with_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("build-script");
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--edition", "2024", "--crate-name", "build_script", "-o"])
        .arg(&script)
        .arg(crate_root.join("build.rs"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let contract = std::fs::read_to_string(crate_root.join("../wire/src/lib.rs")).unwrap();
    for (system, processor) in [("linux", "aarch64"), ("macos", "x86_64")] {
        // Without a compiler in reach: the guest must not be tried.
        let mut command = Command::new(&script);
        command.env_clear().env("CARGO_CFG_TARGET_OS", system).env("CARGO_CFG_TARGET_ARCH", processor);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).unwrap();
        let sentence = said.trim_end().strip_prefix("cargo::error=").unwrap_or_else(|| panic!("{said}"));
        assert!(!sentence.contains('\n') && sentence.contains("x86-64 only"), "{said}");
        assert!(contract.contains(&format!("compile_error!(\"{sentence}\")")), "{sentence}");
    }
}
