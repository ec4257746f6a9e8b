//! A tarball to unpack anywhere: the program, its man pages and its completions.

use super::VERSION;
use super::archive::{Entry, tar_gz};
use super::payload::Payload;

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let top = format!("isopod-{VERSION}-x86_64-linux");
    let mut entries = vec![
        Entry::program(format!("{top}/bin/isopod"), payload.program.clone()),
        Entry::file(format!("{top}/share/bash-completion/completions/isopod"), payload.bash.clone()),
        Entry::file(format!("{top}/share/fish/vendor_completions.d/isopod.fish"), payload.fish.clone()),
        Entry::file(format!("{top}/share/zsh/site-functions/_isopod"), payload.zsh.clone()),
        Entry::file(format!("{top}/LICENSE"), payload.license.clone()),
        Entry::file(format!("{top}/README.md"), payload.readme.clone()),
    ];
    entries.extend(payload.criu.iter().flat_map(|criu| criu.entries(&top)));
    let pages = payload.man_pages.iter();
    entries.extend(pages.map(|(name, page)| Entry::file(format!("{top}/share/man/man1/{name}"), page.clone())));
    Ok((format!("{top}.tar.gz"), tar_gz(&entries, payload.time)?))
}
