//! What packages are made of: the program, and what the program itself prints for packages.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::binary::check_glibc;
use super::criu::Criu;
use super::scratch::Scratch;
use crate::program::{output_of, root, run};

pub(super) struct Payload {
    pub(super) program: Vec<u8>,
    pub(super) program_path: PathBuf,
    /// What saves memory, unless the packages are made without it.
    pub(super) criu: Option<Criu>,
    /// File name and text of each page.
    pub(super) man_pages: Vec<(String, Vec<u8>)>,
    pub(super) bash: String,
    pub(super) zsh: String,
    pub(super) fish: String,
    /// The systemd unit for `/usr/bin/isopod`.
    pub(super) unit: String,
    pub(super) license: Vec<u8>,
    pub(super) readme: String,
    pub(super) changelog: Vec<u8>,
    /// When the packaged commit was made, in seconds: the time of every file in every package, so that the same commit gives
    /// the same packages.
    pub(super) time: u64,
    /// The packaged commit.
    pub(super) revision: String,
    /// The directory that keeps the userland of the image, if it is kept.
    pub(super) userlands: Option<PathBuf>,
}

impl Payload {
    pub(super) fn of(program: &Path, criu: Option<Criu>, userlands: Option<&Path>) -> Result<Self, String> {
        check_glibc(program)?;
        let completions = |shell| output_of(Command::new(program).args(["completions", shell]));
        let text = |name: &str| fs::read_to_string(root().join(name)).map_err(|error| format!("{name}: {error}"));
        let unit = output_of(Command::new(program).args(["service", "install", "--print"]))?;
        Ok(Self {
            program: read(program)?,
            program_path: program.to_owned(),
            criu,
            man_pages: man_pages(program)?,
            bash: completions("bash")?,
            zsh: completions("zsh")?,
            fish: completions("fish")?,
            unit: installed(&unit),
            license: text("LICENSE")?.into_bytes(),
            readme: text("README.md")?,
            changelog: text("CHANGELOG.md")?.into_bytes(),
            time: commit("%ct")?.parse().map_err(|_| "git has no time for this commit")?,
            revision: commit("%H")?,
            userlands: userlands.map(Path::to_owned),
        })
    }
}

/// The unit with the program where the package puts it.
fn installed(unit: &str) -> String {
    let lines = unit.lines().map(|line| match line.strip_prefix("ExecStart=") {
        Some(_) => "ExecStart=/usr/bin/isopod serve".to_owned(),
        None => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

fn man_pages(program: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    let scratch = Scratch::make("man")?;
    run(Command::new(program).arg("help-man").arg(scratch.path()))?;
    read_all(scratch.path())
}

fn read_all(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    let listed = fs::read_dir(directory).map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_name().and_then(OsStr::to_str).ok_or("a man page without a name")?;
        files.push((name.to_owned(), read(&path)?));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// What git says about the checked-out commit.
fn commit(format: &str) -> Result<String, String> {
    let format = format!("--format={format}");
    let said = output_of(Command::new("git").current_dir(root()).args(["log", "-1", &format]))?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_starts_the_installed_program() {
        let unit = installed("[Service]\nExecStart=/tmp/x/isopod serve\nRestart=always\n");
        assert_eq!(unit, "[Service]\nExecStart=/usr/bin/isopod serve\nRestart=always\n");
    }
}
