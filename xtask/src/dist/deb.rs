//! The Debian package. It contains the systemd unit and doesn't enable it: whether a root server runs is the operator's choice.

use std::fmt::Write as _;

use super::archive::{Entry, gzip, tar_gz};
use super::binary::NEWEST_GLIBC;
use super::payload::Payload;
use super::{SUMMARY, VERSION};

/// What dpkg runs. `deploy/debian` has them as files of their own.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../../../deploy/debian/postinst")),
    ("prerm", include_str!("../../../deploy/debian/prerm")),
    ("postrm", include_str!("../../../deploy/debian/postrm")),
];

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let files = files(payload)?;
    let mut control = vec![Entry::file("./control", description(&files))];
    control.extend(SCRIPTS.map(|(name, script)| Entry::program(format!("./{name}"), script)));
    let package = ar(
        &[
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar_gz(&control, payload.time)?),
            ("data.tar.gz", tar_gz(&files, payload.time)?),
        ],
        payload.time,
    );
    Ok((format!("isopod_{VERSION}_amd64.deb"), package))
}

fn files(payload: &Payload) -> Result<Vec<Entry>, String> {
    let mut files = vec![
        Entry::program("./usr/bin/isopod", payload.program.clone()),
        Entry::file("./usr/lib/systemd/system/isopod.service", payload.unit.clone()),
        Entry::file("./usr/share/bash-completion/completions/isopod", payload.bash.clone()),
        Entry::file("./usr/share/fish/vendor_completions.d/isopod.fish", payload.fish.clone()),
        Entry::file("./usr/share/zsh/vendor-completions/_isopod", payload.zsh.clone()),
        Entry::file("./usr/share/doc/isopod/copyright", payload.license.clone()),
        Entry::file("./usr/share/doc/isopod/changelog.gz", gzip(&payload.changelog)?),
    ];
    files.extend(payload.criu.iter().flat_map(|criu| criu.entries("./usr")));
    for (name, page) in &payload.man_pages {
        files.push(Entry::file(format!("./usr/share/man/man1/{name}.gz"), gzip(page)?));
    }
    Ok(files)
}

fn description(files: &[Entry]) -> String {
    let (major, minor) = NEWEST_GLIBC;
    let kilobytes = files.iter().map(|file| file.contents.len()).sum::<usize>().div_ceil(1024);
    let mut control = String::new();
    let _ = write!(
        control,
        "Package: isopod\n\
         Version: {VERSION}\n\
         Architecture: amd64\n\
         Maintainer: Isopod <isopod@localhost>\n\
         Installed-Size: {kilobytes}\n\
         Depends: libc6 (>= {major}.{minor}), libgcc-s1\n\
         Recommends: btrfs-progs, python3-venv, ca-certificates\n\
         Section: admin\n\
         Priority: optional\n\
         Description: {SUMMARY}\n \
         E2B's official SDKs and CLI work with it unmodified. It needs no KVM, no\n \
         Docker, no cloud account and no other server.\n"
    );
    control
}

/// An `ar` archive, which is what a Debian package is.
fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, contents) in members {
        let header = format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", contents.len());
        archive.extend(header.into_bytes());
        archive.extend(contents);
        // Members begin at even offsets.
        archive.resize(archive.len().next_multiple_of(2), b'\n');
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_begin_at_even_offsets_behind_headers_of_sixty_bytes() {
        let archive = ar(&[("a", b"odd".to_vec()), ("b", b"even".to_vec())], 1);
        assert_eq!(&archive[..8], b"!<arch>\n");
        assert_eq!(&archive[8 + 58..8 + 60], b"`\n");
        assert_eq!(&archive[8 + 60..8 + 64], b"odd\n");
        assert_eq!(archive[8 + 64], b'b');
        assert_eq!(archive.len(), 8 + 64 + 64);
    }
}
