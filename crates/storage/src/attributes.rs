//! The attributes of a file besides its bytes, and their form in the metadata of an object.
//!
//! The fields are those that s3fs writes (`mode`, `uid`, `gid`, `mtime`, `xattr`). rclone reads and writes the same
//! `mtime`. An object without them gets the defaults from the settings.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// S3 accepts 2 KB of metadata in total. The rest is left for the other fields.
pub(crate) const XATTR_BUDGET: usize = 1600;

const TYPE_MASK: u32 = 0o170_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_SYMLINK: u32 = 0o120_000;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Directory,
    File,
    Symlink,
}

impl Kind {
    /// The type bits of a mode.
    pub fn type_bits(self) -> u32 {
        match self {
            Self::Directory => TYPE_DIRECTORY,
            Self::File => TYPE_FILE,
            Self::Symlink => TYPE_SYMLINK,
        }
    }
}

/// Everything about an entry that a program can set, except its content and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits, without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: SystemTime,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// The user metadata of an object. The names are without the prefix `x-amz-meta-`.
pub type Metadata = BTreeMap<String, String>;

impl Attributes {
    /// The attributes as metadata of an object.
    pub(crate) fn to_metadata(&self, kind: Kind) -> Metadata {
        let mut metadata = Metadata::from([
            ("mode".to_owned(), (self.mode | kind.type_bits()).to_string()),
            ("uid".to_owned(), self.uid.to_string()),
            ("gid".to_owned(), self.gid.to_string()),
            ("mtime".to_owned(), write_time(self.mtime)),
        ]);
        if !self.xattrs.is_empty() {
            metadata.insert("xattr".to_owned(), write_xattrs(&self.xattrs));
        }
        metadata
    }

    /// The attributes in the metadata, completed with `defaults`. Invalid fields count as missing.
    pub(crate) fn from_metadata(metadata: &Metadata, defaults: Self) -> (Option<Kind>, Self) {
        let number = |name: &str| metadata.get(name).and_then(|text| text.trim().parse::<u32>().ok());
        let mode = number("mode");
        let kind = mode.and_then(|mode| match mode & TYPE_MASK {
            TYPE_DIRECTORY => Some(Kind::Directory),
            TYPE_FILE => Some(Kind::File),
            TYPE_SYMLINK => Some(Kind::Symlink),
            _ => None,
        });
        let attributes = Self {
            mode: mode.map_or(defaults.mode, |mode| mode & 0o7777),
            uid: number("uid").unwrap_or(defaults.uid),
            gid: number("gid").unwrap_or(defaults.gid),
            mtime: metadata.get("mtime").and_then(|text| read_time(text)).unwrap_or(defaults.mtime),
            xattrs: metadata.get("xattr").map(|text| read_xattrs(text)).unwrap_or_default(),
        };
        (kind, attributes)
    }

    /// Whether these extended attributes fit into the metadata of an object.
    pub(crate) fn xattrs_fit(xattrs: &BTreeMap<String, Vec<u8>>) -> bool {
        write_xattrs(xattrs).len() <= XATTR_BUDGET
    }
}

/// Seconds with nine decimals, as rclone writes them. Times before 1970 become zero.
fn write_time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}", since.as_secs(), since.subsec_nanos())
}

fn read_time(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let since = Duration::new(seconds.parse().ok()?, digits.parse().ok()?);
    UNIX_EPOCH.checked_add(since)
}

fn write_xattrs(xattrs: &BTreeMap<String, Vec<u8>>) -> String {
    let encoded: BTreeMap<&str, String> =
        xattrs.iter().map(|(name, value)| (name.as_str(), STANDARD.encode(value))).collect();
    let json = serde_json::to_string(&encoded).expect("a map of strings always serializes to JSON");
    utf8_percent_encode(&json, NON_ALPHANUMERIC).to_string()
}

fn read_xattrs(text: &str) -> BTreeMap<String, Vec<u8>> {
    let json = percent_decode_str(text).decode_utf8_lossy();
    let encoded: BTreeMap<String, String> = serde_json::from_str(&json).unwrap_or_default();
    encoded.into_iter().filter_map(|(name, value)| Some((name, STANDARD.decode(value).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Attributes {
        Attributes { mode: 0o666, uid: 7, gid: 8, mtime: UNIX_EPOCH, xattrs: BTreeMap::new() }
    }

    #[test]
    fn attributes_come_back_from_metadata() {
        let attributes = Attributes {
            mode: 0o4755,
            uid: 1000,
            gid: 1001,
            mtime: UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
            xattrs: BTreeMap::from([("user.a".to_owned(), vec![0, 255, b'"'])]),
        };
        let read = Attributes::from_metadata(&attributes.to_metadata(Kind::Symlink), defaults());
        assert_eq!(read, (Some(Kind::Symlink), attributes));
    }

    #[test]
    fn metadata_of_other_tools_is_read() {
        let rclone = Metadata::from([("mtime".to_owned(), "1700000000.5".to_owned())]);
        let (kind, attributes) = Attributes::from_metadata(&rclone, defaults());
        assert_eq!((kind, attributes.mode, attributes.uid), (None, 0o666, 7));
        assert_eq!(attributes.mtime, UNIX_EPOCH + Duration::new(1_700_000_000, 500_000_000));
    }

    #[test]
    fn senseless_metadata_gives_the_defaults() {
        let odd: Metadata = ["mode", "uid", "gid", "mtime", "xattr"]
            .iter()
            .map(|name| ((*name).to_owned(), "-1e9%".to_owned()))
            .collect();
        assert_eq!(Attributes::from_metadata(&odd, defaults()), (None, defaults()));
    }
}
