//! Which authorities a server may be certified by.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// What this machine trusts and what the configuration adds. Read when it is first needed: most servers never do.
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

    /// What this machine trusts.
    pub fn system() -> Self {
        Self::new(Vec::new())
    }

    /// For connections that somebody else makes.
    pub fn client_config(&self) -> ClientConfig {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "some of this machine's authorities cannot be read");
        }
        let added = CertificateDer::pem_slice_iter(&self.added).filter_map(Result::ok);
        let mut roots = RootCertStore::empty();
        // Machines keep odd certificates in their stores; those count as not trusted.
        roots.add_parsable_certificates(system.certs.into_iter().chain(added));
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}
