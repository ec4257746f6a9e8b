//! TLS of the listener: who the server says it is, and how a connection begins.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to be shown to clients.
#[derive(Clone)]
pub struct TlsIdentity {
    pub(crate) acceptor: TlsAcceptor,
}

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificates are not PEM.
    #[error("the certificate cannot be read")]
    Certificate(#[source] pem::Error),
    /// There is no certificate in the text.
    #[error("there is no certificate in what was given as one")]
    NoCertificate,
    /// The key is not PEM, or none that can be used.
    #[error("the private key cannot be read")]
    Key(#[source] pem::Error),
    /// The key belongs to another certificate, or is of a kind that cannot be used.
    #[error("the certificate and the private key cannot be used together")]
    Pair(#[source] rustls::Error),
}

impl TlsIdentity {
    /// From PEM: the server's certificate followed by those that lead to its authority, and its key.
    ///
    /// # Errors
    /// When they cannot be read or do not belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(TlsError::Certificate)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Key)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

impl fmt::Debug for TlsIdentity {
    /// Without the key.
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
    }
}
