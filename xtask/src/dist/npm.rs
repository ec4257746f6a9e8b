//! The npm package: `npx isopod serve`. Its `bin` is the program itself, so Node.js isn't running while Isopod is.

use serde_json::json;

use super::archive::{Entry, tar_gz};
use super::payload::Payload;
use super::{LICENSE, SUMMARY, VERSION};

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    let about = json!({
        "name": "isopod",
        "version": VERSION,
        "description": SUMMARY,
        "license": LICENSE,
        "keywords": ["e2b", "sandbox", "agents", "code-interpreter"],
        "bin": { "isopod": "bin/isopod" },
        "files": ["bin", "LICENSE.criu"],
        "os": ["linux"],
        "cpu": ["x64"],
        "libc": ["glibc"],
    });
    let about = serde_json::to_vec_pretty(&about).map_err(|error| error.to_string())?;
    // npm wants every file below `package`.
    let mut entries = vec![
        Entry::file("package/package.json", about),
        Entry::file("package/LICENSE", payload.license.clone()),
        Entry::file("package/README.md", payload.readme.clone()),
        Entry::program("package/bin/isopod", payload.program.clone()),
    ];
    if let Some(criu) = &payload.criu {
        entries.push(Entry::program("package/bin/isopod-criu", criu.program.clone()));
        entries.push(Entry::file("package/LICENSE.criu", criu.license.clone()));
    }
    Ok((format!("isopod-{VERSION}.tgz"), tar_gz(&entries, payload.time)?))
}
