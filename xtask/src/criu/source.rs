//! The source of CRIU. Its hash is known, so any place will do.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256 as Hash};

use super::apt::{Apt, debian_archive};
use super::copy;

/// As Debian has it.
pub(super) const FILE: &str = "criu_4.2.1.orig.tar.xz";
/// Debian's archive, for machines whose apt has another one or none, such as Ubuntu's.
const DEBIAN: &str = "http://deb.debian.org/debian";
const DIRECTORY: &str = "pool/main/c/criu";
pub(super) const SHA256: &str = "29ec0ee09e296479fe7048c80980e8ef1d0684d0b0204c2b101dfea19f6725b9";
/// Debian's archive of all files that it ever had, by their SHA-1. The pool drops a release when a newer one has replaced it.
const OLD_FILES: &str = "https://snapshot.debian.org/file/943aa42a53e9678fee0c8cb85c544afa2d331229";

/// Puts the source into the new directory, from the home of an earlier build if it has it. It stays beside the program, for the
/// next build and because the license wants it to go where the program goes.
pub(super) fn fetch(apt: &Apt<'_>, home: &Path, new: &Path) -> Result<PathBuf, String> {
    let file = new.join(FILE);
    let earlier = home.join(FILE);
    if check_hash(&earlier).is_ok() {
        copy(&earlier, &file)?;
        return Ok(file);
    }
    let mut got = Err("there is no place to get the source from".to_owned());
    for address in addresses(debian_archive()) {
        got = apt.download_file(&address, &file).and_then(|()| check_hash(&file));
        if got.is_ok() {
            break;
        }
        let _ = fs::remove_file(&file);
    }
    got.map(|()| file)
}

/// Where to look, one place after the other. A machine's own archive may be nearer, but it need not have this release.
fn addresses(own: Option<String>) -> Vec<String> {
    let other = (own.as_deref() != Some(DEBIAN)).then(|| DEBIAN.to_owned());
    let archives = own.into_iter().chain(other).map(|archive| format!("{archive}/{DIRECTORY}/{FILE}"));
    archives.chain([OLD_FILES.to_owned()]).collect()
}

fn check_hash(file: &Path) -> Result<(), String> {
    let content = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let found = hex::encode(Hash::digest(content));
    if found == SHA256 { Ok(()) } else { Err(format!("{FILE} has the SHA-256 {found} instead of {SHA256}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_an_archive_of_debian_asks_debians_own() {
        let in_debian = format!("{DEBIAN}/pool/main/c/criu/{FILE}");
        assert_eq!(addresses(None), [in_debian.clone(), OLD_FILES.to_owned()]);
        assert_eq!(addresses(Some(DEBIAN.to_owned())), [in_debian.clone(), OLD_FILES.to_owned()]);
        let own = addresses(Some("http://a.example/debian".to_owned()));
        assert_eq!(own, [format!("http://a.example/debian/{DIRECTORY}/{FILE}"), in_debian, OLD_FILES.to_owned()]);
    }
}
