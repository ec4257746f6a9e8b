//! Which certificate authorities are trusted.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// The authorities that this machine trusts, and those that the configuration adds. They are loaded on first use,
/// because most servers never need them.
pub struct Trust {
    added: Vec<u8>,
    connector: OnceLock<TlsConnector>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust(…)")
    }
}

impl Trust {
    pub fn new(added: Vec<u8>) -> Self {
        Self { added, connector: OnceLock::new() }
    }

    pub fn connector(&self) -> &TlsConnector {
        self.connector.get_or_init(|| TlsConnector::from(Arc::new(self.client_config())))
    }

    /// Trusts only the authorities of this machine.
    pub fn system() -> Self {
        Self::new(Vec::new())
    }

    /// The TLS configuration, for connections that the caller makes.
    pub fn client_config(&self) -> ClientConfig {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "could not read some of this machine's certificate authorities");
        }
        let added = CertificateDer::pem_slice_iter(&self.added).filter_map(Result::ok);
        let mut roots = RootCertStore::empty();
        // The system's store may contain certificates that rustls cannot parse. They are not trusted.
        roots.add_parsable_certificates(system.certs.into_iter().chain(added));
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}
