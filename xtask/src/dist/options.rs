//! The command line of `cargo xtask dist`.

use std::path::PathBuf;

use super::PACKAGES;
use crate::program::target_directory;

const USAGE: &str = "\
usage: cargo xtask dist [--binary FILE] [--output DIR] [--userlands DIR] [--without-criu] [PACKAGE]...

  --binary FILE   package this program instead of building one with the profile `dist`
  --output DIR    directory for the packages [default: packages in the target directory]
  --userlands DIR keep the Debian below the OCI image in this directory, and use the one that is there
  --without-criu  leave out CRIU, which saves memory and which only root can build

Packages: tarball, deb, wheel, npm, oci, sbom, criu-source; without a name, all of them. The OCI image needs mmdebstrap and the network.
Without mmdebstrap, it is skipped, or fails if you name it.";

#[derive(Debug)]
pub(super) struct Options {
    pub(super) binary: Option<PathBuf>,
    pub(super) output: PathBuf,
    pub(super) userlands: Option<PathBuf>,
    pub(super) with_criu: bool,
    packages: Vec<String>,
}

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let output = target_directory()?.join("packages");
        let mut options = Self { binary: None, output, userlands: None, with_criu: true, packages: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value\n\n{USAGE}"));
            match *argument {
                "--binary" => options.binary = Some(value()?.into()),
                "--output" => options.output = value()?.into(),
                "--without-criu" => options.with_criu = false,
                "--userlands" => options.userlands = Some(value()?.into()),
                name if PACKAGES.iter().any(|(known, _)| *known == name) => options.packages.push(name.to_owned()),
                _ => return Err(format!("unknown package or option {argument}\n\n{USAGE}")),
            }
        }
        Ok(options)
    }

    pub(super) fn wants(&self, package: &str) -> bool {
        self.packages.is_empty() || self.names(package)
    }

    /// Whether the package was asked for by its name.
    pub(super) fn names(&self, package: &str) -> bool {
        self.packages.iter().any(|name| name == package)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_name_every_package_is_wanted() {
        let all = Options::parse(&[]).unwrap();
        assert!(PACKAGES.iter().all(|(name, _)| all.wants(name) && !all.names(name)));
        let some = Options::parse(&["deb", "--output", "/x", "npm"]).unwrap();
        assert!(some.wants("deb") && some.names("npm") && !some.wants("wheel"));
        assert_eq!(some.output, PathBuf::from("/x"));
    }

    #[test]
    fn packages_are_not_among_what_cargo_builds() {
        let profile = target_directory().unwrap().join(crate::dist::binary::PROFILE);
        assert_ne!(Options::parse(&[]).unwrap().output, profile);
    }

    #[test]
    fn unknown_names_and_missing_values_are_refused() {
        assert!(Options::parse(&["rpm"]).unwrap_err().starts_with("unknown package or option rpm"));
        assert!(Options::parse(&["--output"]).unwrap_err().starts_with("--output needs a value"));
    }
}
