//! TLS to a server, and whom to believe that it is the server.

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
    #[error("the authority's certificate cannot be read")]
    Pem(#[source] pem::Error),
    /// There is no certificate in the text.
    #[error("there is no certificate in what was given as one")]
    Empty,
    /// It is no certificate that could certify anything.
    #[error("the authority's certificate cannot be used")]
    Certificate(#[source] rustls::Error),
}

impl Trust {
    /// Those that this machine trusts. They are read at the first encrypted connection; like OpenSSL, that looks at
    /// the variables `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    pub fn system() -> Self {
        Self { system: true, added: Vec::new() }
    }

    /// Nobody yet.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Also those in this PEM text.
    ///
    /// # Errors
    /// When there are none in it, or one cannot be read.
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
            // Machines keep odd certificates in their stores; those, and what cannot be read, count as not trusted.
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

/// Puts TLS over connections.
pub(super) struct Tls {
    trust: Trust,
    /// Made at the first use: reading what a machine trusts takes milliseconds that plain connections need not spend.
    connector: OnceLock<TlsConnector>,
}

impl Tls {
    pub(super) fn new(trust: Trust) -> Self {
        Self { trust, connector: OnceLock::new() }
    }

    pub(super) async fn wrap(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("no certificate can name {host:?}")))?;
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
