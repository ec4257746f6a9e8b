//! The headers of an entry: the classic one, and PAX records for what does not fit.

use std::io::{self, Read, Write};

use rustix::fs::Stat;
use tar::{EntryType, Header};

/// The size of the fields for names in the classic header.
const MAX_NAME: usize = 100;

pub(super) struct Headers<'a> {
    header: Header,
    path: &'a [u8],
    target: &'a [u8],
    attributes: &'a [(String, Vec<u8>)],
}

impl<'a> Headers<'a> {
    pub(super) fn new(kind: EntryType, path: &'a [u8], stat: &Stat) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        // Times before 1970 do not fit.
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
        header.set_size(0);
        Self { header, path, target: &[], attributes: &[] }
    }

    /// The empty file that hides something of lower layers.
    pub(super) fn mark(path: &'a [u8]) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        for set in [Header::set_uid, Header::set_gid, Header::set_mtime, Header::set_size] {
            set(&mut header, 0);
        }
        header.set_mode(0);
        Self { header, path, target: &[], attributes: &[] }
    }

    pub(super) fn path(&self) -> &[u8] {
        self.path
    }

    pub(super) fn with_target(self, target: &'a [u8]) -> Self {
        Self { target, ..self }
    }

    pub(super) fn with_attributes(self, attributes: &'a [(String, Vec<u8>)]) -> Self {
        Self { attributes, ..self }
    }

    pub(super) fn with_size(mut self, size: u64) -> Self {
        self.header.set_size(size);
        self
    }

    pub(super) fn append_to<W: Write>(&self, archive: &mut tar::Builder<W>, contents: impl Read) -> io::Result<()> {
        let mut records: Vec<(&str, &[u8])> = Vec::new();
        for (key, text) in [("path", self.path), ("linkpath", self.target)] {
            if text.len() > MAX_NAME {
                records.push((key, text));
            }
        }
        records.extend(self.attributes.iter().map(|(key, value)| (key.as_str(), value.as_slice())));
        archive.append_pax_extensions(records)?;
        let mut header = self.header.clone();
        if let Some(fields) = header.as_ustar_mut() {
            put(&mut fields.name, self.path);
            put(&mut fields.linkname, self.target);
        }
        header.set_cksum();
        archive.append(&header, contents)
    }
}

/// Names are bytes, so they are not set through paths, which the library checks and splits.
fn put(field: &mut [u8; MAX_NAME], text: &[u8]) {
    let length = text.len().min(MAX_NAME);
    field[..length].copy_from_slice(&text[..length]);
}
