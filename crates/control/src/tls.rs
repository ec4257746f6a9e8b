//! The TLS settings of the listener.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, and optionally others for some domains.
#[derive(Clone)]
pub struct TlsIdentity {
    certificates: Certificates,
    pub(crate) acceptor: TlsAcceptor,
}

/// Selects the certificate by the name that the client requests.
#[derive(Clone, Debug)]
struct Certificates {
    usual: Arc<CertifiedKey>,
    of_domains: Vec<(String, Arc<CertifiedKey>)>,
}

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificates are not PEM.
    #[error("cannot read the certificate")]
    Certificate(#[source] pem::Error),
    /// The text contains no certificate.
    #[error("the certificate file contains no certificate")]
    NoCertificate,
    /// The key is not PEM, or not usable.
    #[error("cannot read the private key")]
    Key(#[source] pem::Error),
    /// The key belongs to another certificate, or its type is not supported.
    #[error("the certificate and the private key do not match")]
    Pair(#[source] rustls::Error),
}

impl TlsIdentity {
    /// Reads PEM: the server's certificate followed by the intermediate certificates, and its key.
    ///
    /// # Errors
    /// If they cannot be read or do not match.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let usual = Arc::new(read_pair(chain, key)?);
        Self::new(Certificates { usual, of_domains: Vec::new() })
    }

    /// Uses another certificate for these domains and the names below them.
    ///
    /// # Errors
    /// If it cannot be read or does not match the key.
    pub fn with_domains(self, domains: &[String], chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let pair = Arc::new(read_pair(chain, key)?);
        let mut certificates = self.certificates;
        certificates.of_domains.extend(domains.iter().map(|domain| (domain.to_ascii_lowercase(), Arc::clone(&pair))));
        Self::new(certificates)
    }

    fn new(certificates: Certificates) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificates.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { certificates, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

fn read_pair(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Key)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Pair)
}

impl Certificates {
    fn of(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let is_below = |domain: &str| name.is_some_and(|name| is_or_is_below(name, domain));
        let found = self.of_domains.iter().find(|(domain, _)| is_below(domain));
        found.map_or(&self.usual, |(_, pair)| pair)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.of(hello.server_name())))
    }
}

/// Whether a host name is the domain, or a name below it.
pub(crate) fn is_or_is_below(name: &str, domain: &str) -> bool {
    let Some(cut) = name.len().checked_sub(domain.len()) else { return false };
    let Some((rest, end)) = name.split_at_checked(cut) else { return false };
    end.eq_ignore_ascii_case(domain) && (rest.is_empty() || rest.ends_with('.'))
}

impl fmt::Debug for TlsIdentity {
    /// Does not print the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn what_is_no_pair_of_certificate_and_key_is_refused() {
        let ((certificate, key), (other, _)) = (pair(), pair());
        let read = |chain: &str, key: &str| TlsIdentity::from_pem(chain.as_bytes(), key.as_bytes());
        assert!(matches!(read("", &key), Err(TlsError::NoCertificate)));
        assert!(matches!(read(&key, &key), Err(TlsError::NoCertificate)));
        assert!(matches!(read(&certificate, &certificate), Err(TlsError::Key(_))));
        assert!(matches!(read(&other, &key), Err(TlsError::Pair(_))));
        assert!(read(&certificate.replace('M', "!"), &key).is_err());
        assert!(read(&certificate, &key).is_ok());
        let usual = || read(&certificate, &key).unwrap();
        assert!(usual().with_domains(&[], other.as_bytes(), key.as_bytes()).is_err());
    }

    #[test]
    fn who_asks_for_a_domain_sees_its_certificate_and_all_others_the_usual_one() {
        let ((certificate, key), (other, other_key)) = (pair(), pair());
        let usual = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let identity =
            usual.with_domains(&["E2B.app".to_owned()], other.as_bytes(), other_key.as_bytes()).unwrap().certificates;
        for name in ["e2b.app", "api.e2b.app", "80-iabc.E2B.APP"] {
            assert!(Arc::ptr_eq(identity.of(Some(name)), &identity.of_domains[0].1), "{name}");
        }
        for name in [Some("xe2b.app"), Some("app"), Some("e2b.app.evil.com"), Some("localhost"), Some(""), None] {
            assert!(Arc::ptr_eq(identity.of(name), &identity.usual), "{name:?}");
        }
    }
}
