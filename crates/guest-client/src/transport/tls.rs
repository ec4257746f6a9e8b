//! TLS to a server, and the authorities to trust.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The authorities that may certify a server.
#[derive(Clone, Default)]
pub struct Trust {
    system: bool,
    added: Vec<CertificateDer<'static>>,
}

/// Why an authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// It is not PEM.
    #[error("cannot read the authority's certificate")]
    Pem(#[source] pem::Error),
    /// The text contains no certificate.
    #[error("the file of the authority contains no certificate")]
    Empty,
    /// It is not a certificate of an authority.
    #[error("the authority's certificate cannot be used")]
    Certificate(#[source] rustls::Error),
}

impl Trust {
    /// Trusts the authorities that this machine trusts. They are read at the first encrypted connection. Like OpenSSL,
    /// that respects the variables `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    pub fn system() -> Self {
        Self { system: true, added: Vec::new() }
    }

    /// Trusts no authority.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Also trusts the authorities in this PEM text.
    ///
    /// # Errors
    /// If there are none in it, or one cannot be read.
    pub fn and_pem(mut self, text: &[u8]) -> Result<Self, TrustError> {
        let found: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(TrustError::Pem)?;
        if found.is_empty() {
            return Err(TrustError::Empty);
        }
        for certificate in found {
            RootCertStore::empty().add(certificate.clone()).map_err(TrustError::Certificate)?;
            self.added.push(certificate);
        }
        Ok(self)
    }

    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        if self.system {
            // Machines have odd certificates in their stores. Those, and unreadable ones, are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        roots.add_parsable_certificates(self.added.iter().cloned());
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("system", &self.system).field("added", &self.added.len()).finish()
    }
}

/// Adds TLS to connections.
pub(super) struct Tls {
    trust: Trust,
    /// Created at the first use, because reading the trusted authorities takes milliseconds that plain connections need
    /// not spend.
    connector: OnceLock<TlsConnector>,
}

impl Tls {
    pub(super) fn new(trust: Trust) -> Self {
        Self { trust, connector: OnceLock::new() }
    }

    pub(super) async fn wrap(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is not a valid name for a certificate"))
        })?;
        let connector = self.connector.get_or_init(|| TlsConnector::from(Arc::new(self.trust.config())));
        connector.connect(name, stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_authority_is_refused() {
        assert!(matches!(Trust::nobody().and_pem(b""), Err(TrustError::Empty)));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(Trust::system().and_pem(broken), Err(TrustError::Certificate(_))));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        assert!(Trust::nobody().and_pem(made.cert.pem().as_bytes()).is_ok());
    }
}
