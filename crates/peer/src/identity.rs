//! What makes a server a member: the cluster's authority with its key, and its own certificate. All of it is in one file
//! of the state directory, which only its owner can read.
//!
//! Every member has the authority's key. So any of them can let machines join, each renews its own certificate without
//! asking anybody, and no machine is special. The key alone gives nothing: members are those in the database, known by
//! the hashes of their public keys.

use std::fmt;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::secrets::KeyHash;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::certificate::{Pair, certify, hash_of_key, make_authority, make_key};
use crate::server_id::{ServerId, ServerIdError};

/// How long a node's certificate lasts.
const CERTIFICATE_LASTS: Duration = Duration::from_secs(90 * 24 * 3600);
const FILE: &str = "identity.json";
const DIRECTORY: &str = "cluster";

/// A member's certificates and keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    server: String,
    /// PEM.
    authority: String,
    authority_key: String,
    certificate: String,
    key: String,
    /// When the certificate ends, in milliseconds since 1970.
    until: i64,
    /// The database of the cluster, as the member that let this one in knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    database: Option<String>,
}

/// Why certificates could not be made, read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("could not read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is damaged; remove this server from the cluster and let it join again")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("could not write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("could not make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("the certificates cannot be used")]
    Unusable(#[source] rustls::Error),
    #[error("the authority's certificate is not PEM")]
    Authority(#[source] rustls::pki_types::pem::Error),
    #[error(transparent)]
    Id(#[from] ServerIdError),
}

impl Identity {
    /// Makes a new authority, and the first member's certificate.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn create(server: &ServerId, database: Option<&str>) -> Result<Self, IdentityError> {
        let Pair { certificate, key } = make_authority()?;
        Self::of_member(server, make_key()?, certificate, key, database.map(str::to_owned))
    }

    /// Certifies a member's key by the authority.
    pub(crate) fn of_member(
        server: &ServerId,
        key: String,
        authority: String,
        authority_key: String,
        database: Option<String>,
    ) -> Result<Self, IdentityError> {
        let until = Timestamp::now().plus(CERTIFICATE_LASTS);
        let certificate = certify(server, &key, &authority_key, until)?;
        let server = server.to_string();
        Ok(Self { server, authority, authority_key, certificate, key, until: until.0, database })
    }

    /// The same member with a certificate that lasts until this time.
    ///
    /// # Errors
    /// If the keys are unusable.
    pub fn lasting_until(&self, until: Timestamp) -> Result<Self, IdentityError> {
        let certificate = certify(&self.server()?, &self.key, &self.authority_key, until)?;
        Ok(Self { certificate, until: until.0, ..self.clone() })
    }

    /// The same member with a new certificate, if less than a third of the time is left.
    pub(crate) fn renewed_if_needed(&self) -> Result<Option<Self>, IdentityError> {
        if Timestamp::now().until(self.until()) > CERTIFICATE_LASTS / 3 {
            return Ok(None);
        }
        self.lasting_until(Timestamp::now().plus(CERTIFICATE_LASTS)).map(Some)
    }

    /// Reads what [`Self::write`] has written. `None` if the server is no member of a cluster.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = file_in(state_dir);
        match std::fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| IdentityError::Damaged { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::Read { path, source }),
        }
    }

    /// Writes everything to the state directory, readable only by its owner.
    ///
    /// # Errors
    /// If the disk refuses it.
    pub fn write(&self, state_dir: &Path) -> Result<(), IdentityError> {
        let path = file_in(state_dir);
        self.try_write(&path).map_err(|source| IdentityError::Write { path, source })
    }

    fn try_write(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().unwrap_or(path);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let fresh = directory.join(".identity.new");
        // Left by a crash, perhaps with other rights.
        let _ = std::fs::remove_file(&fresh);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        std::fs::File::open(directory)?.sync_all()
    }

    /// Forgets the membership.
    pub(crate) fn remove(state_dir: &Path) -> Result<(), IdentityError> {
        let path = file_in(state_dir);
        std::fs::remove_file(&path).map_err(|source| IdentityError::Write { path, source })
    }

    /// # Errors
    /// If the id in the file is not one.
    pub fn server(&self) -> Result<ServerId, IdentityError> {
        Ok(ServerId::parse(&self.server)?)
    }

    /// When the certificate ends.
    pub fn until(&self) -> Timestamp {
        Timestamp(self.until)
    }

    /// The cluster's database, if this server joined by a token and was told.
    pub fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    /// The hash of this member's public key.
    ///
    /// # Errors
    /// If the key is unusable.
    pub fn key_hash(&self) -> Result<KeyHash, IdentityError> {
        Ok(hash_of_key(&self.key)?)
    }

    /// The SHA-256 of the authority's certificate, in hexadecimal digits.
    ///
    /// # Errors
    /// If the certificate is not PEM.
    pub fn fingerprint(&self) -> Result<String, IdentityError> {
        Ok(hex::encode(Sha256::digest(self.authority_der()?)))
    }

    pub(crate) fn authority_der(&self) -> Result<CertificateDer<'static>, IdentityError> {
        CertificateDer::from_pem_slice(self.authority.as_bytes()).map_err(IdentityError::Authority)
    }

    pub(crate) fn authority_pem(&self) -> (&str, &str) {
        (&self.authority, &self.authority_key)
    }

    pub(crate) fn certificate_pem(&self) -> (&str, &str) {
        (&self.certificate, &self.key)
    }
}

fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join(DIRECTORY).join(FILE)
}

impl fmt::Debug for Identity {
    /// Does not print the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("server", &self.server).field("until", &self.until()).finish_non_exhaustive()
    }
}
