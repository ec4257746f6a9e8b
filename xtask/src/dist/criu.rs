//! CRIU, which saves the memory of sandboxes: a program of its own that the packages carry. Its license wants its source to go
//! where it goes, so that is a package too.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::archive::{Entry, tar_gz};
use super::payload::Payload;
use crate::criu;
use crate::program::{output_of, root};

/// The program and its license.
pub(super) struct Criu {
    pub(super) program: Vec<u8>,
    pub(super) license: Vec<u8>,
    source: Vec<Entry>,
}

/// Where the source says what it is.
const ABOUT: &str = include_str!("criu.md");

impl Criu {
    /// The one that setup builds, which is built now if it is not there. The error says why it can't be.
    pub(super) fn built() -> Result<Self, String> {
        criu::ensure()?;
        let (program, archive) = criu::program().zip(criu::source()).ok_or("the build left no program")?;
        let license = output_of(Command::new("tar").args(["-xOf"]).arg(&archive).args(["--wildcards", "*/COPYING"]))?;
        let mut source = vec![Entry::file("README.md", ABOUT)];
        let name = archive.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        source.push(Entry::file(name, read(&archive)?));
        for file in list(&root().join("xtask/src/criu"))? {
            source.push(Entry::file(format!("build/{file}"), read(&root().join("xtask/src/criu").join(&file))?));
        }
        Ok(Self { program: read(&program)?, license: license.into_bytes(), source })
    }

    /// Its two files below a directory, such as `usr`.
    pub(super) fn entries(&self, below: &str) -> [Entry; 2] {
        [
            Entry::program(format!("{below}/lib/isopod/criu"), self.program.clone()),
            Entry::file(format!("{below}/share/doc/isopod/criu-copyright"), self.license.clone()),
        ]
    }
}

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let criu = payload.criu.as_ref().ok_or("there is no CRIU in these packages")?;
    let top = format!("isopod-criu-{}-source", criu::VERSION);
    let entries: Vec<Entry> =
        criu.source.iter().map(|entry| Entry::file(format!("{top}/{}", entry.path), entry.contents.clone())).collect();
    Ok((format!("{top}.tar.gz"), tar_gz(&entries, payload.time)?))
}

fn list(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("cannot list {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
