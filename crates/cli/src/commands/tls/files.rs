//! The files of an authority and of the server's certificate. What is there and still good is kept; each file is
//! replaced as a whole, and the record that makes the others count is written last.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use super::authority::{AUTHORITY_LASTS, CERTIFICATE_LASTS, make_authority, make_certificate};
use super::bundles::system_bundle;
use super::names::Names;
use crate::env_names;

pub(super) const AUTHORITY: &str = "ca.pem";
pub(super) const BUNDLE: &str = "bundle.pem";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";
const RECORD: &str = "made.json";

/// What ends sooner than that is made anew.
const RENEW_BEFORE: Duration = Duration::days(30);
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// The directory of these files, while nobody else changes it.
#[derive(Debug)]
pub(super) struct TlsFiles {
    directory: PathBuf,
    _lock: File,
}

/// What had to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Nothing,
    Certificate,
    Authority,
}

impl Made {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "Everything is there already.",
            Self::Certificate => "Made a new certificate. Clients that trust the authority trust it too.",
            Self::Authority => "Made a new authority. Clients must be given its certificate.",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    names: Names,
    authority_made_at: i64,
    certificate_made_at: i64,
}

impl TlsFiles {
    pub(super) fn open(directory: PathBuf) -> anyhow::Result<Self> {
        let failed = || format!("could not use the directory {}", directory.display());
        fs::create_dir_all(&directory).with_context(failed)?;
        let directory = directory.canonicalize().with_context(failed)?;
        let mut options = File::options();
        let lock =
            options.create(true).append(true).mode(PRIVATE).open(directory.join(".lock")).with_context(failed)?;
        flock(&lock, FlockOperation::LockExclusive).with_context(failed)?;
        Ok(Self { directory, _lock: lock })
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.directory.join(AUTHORITY)
    }

    pub(super) fn bundle(&self) -> PathBuf {
        self.directory.join(BUNDLE)
    }

    /// Tells one authority from the next in lists of trusted ones. `None` if there is no complete one.
    pub(super) fn authority_name(&self) -> Option<String> {
        Some(format!("isopod-{}", self.read_record()?.authority_made_at))
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    pub(super) fn key(&self) -> PathBuf {
        self.directory.join(KEY)
    }

    /// Sees to it that there is a certificate for these names, good for a while yet.
    pub(super) fn ensure(&self, wanted: &Names) -> anyhow::Result<Made> {
        self.ensure_at(wanted, OffsetDateTime::now_utc())
    }

    fn ensure_at(&self, wanted: &Names, now: OffsetDateTime) -> anyhow::Result<Made> {
        let record = self.read_record();
        let made = match &record {
            Some(record) if record.names.covers(wanted) && is_good(record.authority_made_at, AUTHORITY_LASTS, now) => {
                if is_good(record.certificate_made_at, CERTIFICATE_LASTS, now) {
                    Made::Nothing
                } else {
                    self.renew_certificate(record, now)?;
                    Made::Certificate
                }
            }
            _ => {
                let names = record.map_or_else(|| wanted.clone(), |record| record.names.with(wanted));
                self.start_anew(names, now)?;
                Made::Authority
            }
        };
        self.write_bundle()?;
        Ok(made)
    }

    /// As [`TlsFiles::ensure`], for an authority that may certify no more than this: what earlier starts asked for is
    /// forgotten.
    pub(super) fn ensure_only(&self, wanted: &Names) -> anyhow::Result<Made> {
        if self.read_record().is_some_and(|record| record.names != *wanted) {
            self.forget_record()?;
        }
        self.ensure(wanted)
    }

    /// None when something is missing or unreadable: then all is made anew.
    fn read_record(&self) -> Option<Record> {
        let complete =
            [AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY].iter().all(|name| self.directory.join(name).is_file());
        let text = fs::read(self.directory.join(RECORD)).ok().filter(|_| complete)?;
        serde_json::from_slice(&text).ok()
    }

    fn start_anew(&self, names: Names, now: OffsetDateTime) -> anyhow::Result<()> {
        // From whole seconds, because that is what the record keeps and the authority's name is made of.
        let now = now.replace_nanosecond(0).context("a time without fractions")?;
        self.forget_record()?;
        let authority = make_authority(&names, now)?;
        self.write(AUTHORITY_KEY, PRIVATE, &authority.key)?;
        self.write(AUTHORITY, PUBLIC, &authority.certificate)?;
        let at = now.unix_timestamp();
        self.write_certificate(&Record { names, authority_made_at: at, certificate_made_at: at }, &authority.key)
    }

    fn renew_certificate(&self, record: &Record, now: OffsetDateTime) -> anyhow::Result<()> {
        let path = self.directory.join(AUTHORITY_KEY);
        let authority_key = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        self.forget_record()?;
        let record = Record {
            names: record.names.clone(),
            authority_made_at: record.authority_made_at,
            certificate_made_at: now.unix_timestamp(),
        };
        self.write_certificate(&record, &authority_key)
    }

    fn write_certificate(&self, record: &Record, authority_key: &str) -> anyhow::Result<()> {
        let time = |seconds| OffsetDateTime::from_unix_timestamp(seconds).context("a time that can be");
        let authority_made_at = time(record.authority_made_at)?;
        let made_at = time(record.certificate_made_at)?;
        let server = make_certificate(&record.names, authority_made_at, authority_key, made_at)?;
        self.write(KEY, PRIVATE, &server.key)?;
        self.write(CERTIFICATE, PUBLIC, &server.certificate)?;
        self.write(RECORD, PUBLIC, &serde_json::to_string_pretty(record)?)
    }

    fn forget_record(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.directory.join(RECORD)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("could not remove the record of the certificates")
            }
            _ => Ok(()),
        }
    }

    /// Programs that are told of one file trust nobody else: it holds what the system trusts as well.
    fn write_bundle(&self) -> anyhow::Result<()> {
        let authority = fs::read_to_string(self.authority()).context("could not read the authority's certificate")?;
        let set = std::env::var_os(env_names::SSL_CERT_FILE).map(PathBuf::from);
        let system = set.filter(|path| !path.starts_with(&self.directory)).into_iter();
        let system = system.chain(system_bundle()).find_map(|path| fs::read_to_string(path).ok());
        self.write(BUNDLE, PUBLIC, &format!("{authority}\n{}", system.unwrap_or_default()))
    }

    fn write(&self, name: &str, mode: u32, text: &str) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        replace(&path, mode, text).with_context(|| format!("could not write {}", path.display()))
    }
}

fn is_good(made_at: i64, lasts: Duration, now: OffsetDateTime) -> bool {
    let left = OffsetDateTime::from_unix_timestamp(made_at).map(|made_at| made_at + lasts - now);
    left.is_ok_and(|left| left > RENEW_BEFORE && left <= lasts)
}

fn replace(path: &Path, mode: u32, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    // One that a killed process left may have other permissions.
    let _ = fs::remove_file(&temporary);
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(domain: &str) -> Names {
        Names::new(domain, &[]).unwrap()
    }

    #[test]
    fn what_is_there_is_kept_and_what_ends_soon_is_renewed() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles::open(directory.path().join("tls")).unwrap();
        let now = OffsetDateTime::now_utc();
        let read = |name: &str| fs::read_to_string(directory.path().join("tls").join(name)).unwrap();
        assert_eq!(files.ensure_at(&names("a.localhost"), now).unwrap(), Made::Authority);
        let (authority, certificate) = (read(AUTHORITY), read(CERTIFICATE));
        assert_eq!(files.ensure_at(&names("a.localhost"), now).unwrap(), Made::Nothing);
        assert_eq!((read(AUTHORITY), read(CERTIFICATE)), (authority.clone(), certificate.clone()));

        let later = now + CERTIFICATE_LASTS - Duration::days(10);
        assert_eq!(files.ensure_at(&names("a.localhost"), later).unwrap(), Made::Certificate);
        assert_eq!(read(AUTHORITY), authority);
        assert_ne!(read(CERTIFICATE), certificate);
        assert_eq!(files.ensure_at(&names("b.localhost"), now).unwrap(), Made::Authority);
        assert_eq!(files.ensure_at(&names("a.localhost"), now).unwrap(), Made::Nothing, "earlier names stay");
        fs::remove_file(files.key()).unwrap();
        assert_eq!(files.ensure_at(&names("a.localhost"), now).unwrap(), Made::Authority);
    }

    #[test]
    fn an_authority_for_some_domains_forgets_those_that_are_not_asked_for_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles::open(directory.path().to_owned()).unwrap();
        let only = |domains: &[&str]| Names::only(&domains.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(files.ensure_only(&only(&["a.example", "b.example"]).unwrap()).unwrap(), Made::Authority);
        assert_eq!(files.ensure_only(&only(&["b.example", "a.example"]).unwrap()).unwrap(), Made::Nothing);
        assert_eq!(files.ensure_only(&only(&["a.example"]).unwrap()).unwrap(), Made::Authority);
        assert_eq!(files.read_record().unwrap().names, only(&["a.example"]).unwrap());
        assert!(only(&["localhost"]).is_err() && only(&["*.a.example"]).is_err());
    }

    #[test]
    fn keys_are_for_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles::open(directory.path().to_owned()).unwrap();
        files.ensure(&names("a.localhost")).unwrap();
        let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(KEY), mode(AUTHORITY_KEY), mode(AUTHORITY)], [PRIVATE, PRIVATE, PUBLIC]);
    }

    #[test]
    fn the_certificate_and_key_belong_together() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles::open(directory.path().to_owned()).unwrap();
        files.ensure(&names("a.localhost")).unwrap();
        let (certificate, key) = (fs::read(files.certificate()).unwrap(), fs::read(files.key()).unwrap());
        assert!(isopod_control::TlsIdentity::from_pem(&certificate, &key).is_ok());
        assert!(isopod_client::Trust::nobody().and_pem(&fs::read(files.authority()).unwrap()).is_ok());
    }
}
