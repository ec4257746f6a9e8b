//! The build script, on machines that lack something. The programs that it starts are scripts of these tests.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const MUSL: &str = "x86_64-unknown-linux-musl";
const GLIBC: &str = "x86_64-unknown-linux-gnu";

#[test]
fn a_build_for_another_machine_is_refused_with_one_sentence() {
    let machine = Machine::new();
    let contract = fs::read_to_string(crate_root().join("../wire/src/lib.rs")).unwrap();
    for (system, processor) in [("linux", "aarch64"), ("macos", "x86_64")] {
        // Without a compiler in reach: the guest must not be tried.
        let mut command = Command::new(&machine.script);
        command.env_clear().env("CARGO_CFG_TARGET_OS", system).env("CARGO_CFG_TARGET_ARCH", processor);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).unwrap();
        let sentence = said.trim_end().strip_prefix("cargo::error=").unwrap_or_else(|| panic!("{said}"));
        assert!(!sentence.contains('\n') && sentence.contains("x86-64 only"), "{said}");
        assert!(contract.contains(&format!("compile_error!(\"{sentence}\")")), "{sentence}");
    }
}

#[test]
fn without_musl_and_rustup_the_guest_is_linked_with_glibc_and_one_warning_says_so() {
    let machine = Machine::new();
    let built = machine.build();
    assert!(built.succeeds, "{}", built.said);
    let [warning] = &built.lines_of("cargo:warning=")[..] else { panic!("{}", built.said) };
    assert!(warning.contains("linked with glibc") && warning.contains("cannot start rustup"), "{warning}");
    machine.assert_guest_is_for(GLIBC, "-C target-feature=+crt-static", &built);
}

#[test]
fn if_rustup_cannot_add_musl_the_warning_has_its_reason() {
    let machine = Machine::new();
    machine.program("rustup", "echo 'info: downloading' >&2\necho 'error: no network' >&2\nexit 1");
    let built = machine.build();
    assert!(built.succeeds, "{}", built.said);
    let [adds, fails] = &built.lines_of("cargo:warning=")[..] else { panic!("{}", built.said) };
    assert!(adds.contains(&format!("rustup adds the target {MUSL}")), "{adds}");
    assert!(fails.contains("linked with glibc") && fails.ends_with("(error: no network)"), "{fails}");
    machine.assert_guest_is_for(GLIBC, "-C target-feature=+crt-static", &built);
}

#[test]
fn a_warning_says_that_rustup_adds_musl_while_it_does() {
    let machine = Machine::new();
    // It ends when it sees the warning, or gives up.
    let rustup = format!(
        r#"looked=0
        until [ "$seen" ]; do
            while read -r line; do case $line in 'cargo:warning=rustup adds'*) seen=1;; esac; done < {said}
            looked=$((looked + 1))
            if [ $looked = 100000 ]; then echo 'error: nothing was said' >&2; exit 1; fi
        done
        /bin/mkdir {libraries}
        echo "$*" > {asked}"#,
        said = machine.path("said").display(),
        libraries = machine.path("musl").display(),
        asked = machine.path("asked").display(),
    );
    machine.program("rustup", &rustup);
    let built = machine.build();
    assert!(built.succeeds, "{}", built.said);
    assert_eq!(fs::read_to_string(machine.path("asked")).unwrap().trim_end(), format!("target add {MUSL}"));
    let [warning] = &built.lines_of("cargo:warning=")[..] else { panic!("{}", built.said) };
    assert!(warning.contains(&format!("rustup adds the target {MUSL}")), "{warning}");
    machine.assert_guest_is_for(MUSL, "", &built);
}

#[test]
fn a_guest_that_cannot_be_built_is_one_error_with_the_packages_to_install() {
    let machine = Machine::new();
    fs::create_dir(machine.path("musl")).unwrap();
    machine.program("cargo", "echo 'error: linker `cc` not found' >&2\nexit 101");
    let built = machine.build();
    // Cargo shows what the compiler said only if the script fails.
    assert!(!built.succeeds, "{}", built.said);
    let [error] = &built.lines_of("cargo::error=")[..] else { panic!("{}", built.said) };
    assert!(error.contains(MUSL) && error.ends_with("apt-get install gcc libc6-dev"), "{error}");
    assert_eq!(built.complained, "error: linker `cc` not found\n");
}

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory with the compiled script, and with all programs that it finds.
struct Machine {
    directory: TempDir,
    script: PathBuf,
}

/// What came of a run.
struct Built {
    succeeds: bool,
    said: String,
    complained: String,
}

impl Built {
    fn lines_of(&self, key: &str) -> Vec<&str> {
        self.said.lines().filter_map(|line| line.strip_prefix(key)).collect()
    }
}

impl Machine {
    /// It has a compiler without musl, unless the directory `musl` exists, and a cargo that writes down how it was called.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("build-script");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024", "--crate-name", "build_script", "-o"]).arg(&script);
        let compiled = command.arg(crate_root().join("build.rs")).output().expect("rustc compiled this test");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        fs::create_dir(directory.path().join("programs")).expect("it is new");
        let machine = Self { directory, script };
        machine.program("rustc", &format!("echo {}", machine.path("musl").display()));
        let called = machine.path("called").display().to_string();
        machine.program("cargo", &format!("echo \"$*\" > {called}\necho \"$RUSTFLAGS\" >> {called}"));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self, name: &str, lines: &str) {
        let file = self.path("programs").join(name);
        fs::write(&file, format!("#!/bin/sh\n{lines}\n")).expect("the directory is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    }

    fn build(&self) -> Built {
        let said = self.path("said");
        let mut command = Command::new(&self.script);
        command
            .env_clear()
            .envs([("CARGO_CFG_TARGET_OS", "linux"), ("CARGO_CFG_TARGET_ARCH", "x86_64")])
            .env("CARGO_MANIFEST_DIR", crate_root())
            .env("OUT_DIR", self.path("target/debug/build/isopod-node/out"))
            .env("PATH", self.path("programs"))
            .env("CARGO", self.path("programs/cargo"))
            // Flags of the outer build, which are not for the guest.
            .env("RUSTFLAGS", "-C outer")
            .stdout(fs::File::create(&said).expect("the directory is ours"));
        let done = command.output().expect("it was compiled");
        Built {
            succeeds: done.status.success(),
            said: fs::read_to_string(said).expect("it prints text"),
            complained: String::from_utf8(done.stderr).expect("it prints text"),
        }
    }

    fn assert_guest_is_for(&self, target: &str, flags: &str, built: &Built) {
        let called = fs::read_to_string(self.path("called")).expect("cargo was called");
        let (arguments, given) = called.split_once('\n').expect("it writes two lines");
        assert!(arguments.contains(&format!("--target {target} ")), "{arguments}");
        assert_eq!(given.trim_end_matches('\n'), flags);
        let guest = self.path("target/guest-build").join(target).join("guest/isopod-guest");
        assert_eq!(built.lines_of("cargo:rustc-env=ISOPOD_GUEST_PATH="), [guest.display().to_string()]);
    }
}
