//! TLS between members. Both sides show a certificate of the cluster's authority, and only TLS 1.3 is spoken. Sessions
//! are not resumed: every connection proves that both certificates are valid now.
//!
//! A connection says by ALPN what it is for: requests of a member, or a machine that joins and has no certificate yet.

use std::sync::Arc;

use isopod_store::secrets::KeyHash;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use sha2::{Digest as _, Sha256};

use crate::certificate::hash_of_public_key;
use crate::identity::{Identity, IdentityError};
use crate::server_id::ServerId;

pub(crate) const PEER_PROTOCOL: &[u8] = b"isopod-peer/1";
pub(crate) const JOIN_PROTOCOL: &[u8] = b"isopod-join/1";

/// A member's TLS settings.
#[derive(Clone, Debug)]
pub(crate) struct PeerTls {
    /// For connections of other members.
    pub(crate) server: Arc<ServerConfig>,
    /// For machines that join.
    pub(crate) join: Arc<ServerConfig>,
    /// For connections to other members.
    pub(crate) client: Arc<ClientConfig>,
}

/// The member that the certificate of a connection names.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) server: ServerId,
    pub(crate) key_hash: KeyHash,
}

impl PeerTls {
    pub(crate) fn of(identity: &Identity) -> Result<Self, IdentityError> {
        let unusable = IdentityError::Unusable;
        let roots = Arc::new(roots_of(identity.authority_der()?).map_err(unusable)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .build()
            .map_err(|error| unusable(rustls::Error::General(error.to_string())))?;
        let (chain, key) = own(identity)?;
        let mut server = server_builder()
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        server.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
        without_sessions(&mut server);
        let mut join = server_builder()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        join.alpn_protocols = vec![JOIN_PROTOCOL.to_vec()];
        without_sessions(&mut join);
        let mut client = client_builder()
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        client.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Self { server: Arc::new(server), join: Arc::new(join), client: Arc::new(client) })
    }
}

/// TLS for a machine that joins: it has no certificate, and knows only the fingerprint of the authority.
pub(crate) fn joining_config(fingerprint: &str) -> Result<ClientConfig, rustls::Error> {
    let verifier = Arc::new(ByFingerprint { fingerprint: fingerprint.to_owned() });
    let mut config = client_builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![JOIN_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Reads which member a verified chain is of.
pub(crate) fn presented(chain: Option<&[CertificateDer<'_>]>) -> Option<Presented> {
    let certificate = webpki::EndEntityCert::try_from(chain?.first()?).ok()?;
    let mut names = certificate.valid_dns_names();
    let (name, None) = (names.next()?, names.next()) else { return None };
    let key_hash = hash_of_public_key(&certificate.subject_public_key_info());
    Some(Presented { server: ServerId::of_certificate_name(name)?, key_hash })
}

/// The chain has the authority too, for machines that join.
fn own(identity: &Identity) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IdentityError> {
    let (certificate, key) = identity.certificate_pem();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(IdentityError::Authority)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(IdentityError::Authority)?;
    Ok((vec![certificate, identity.authority_der()?], key))
}

fn roots_of(authority: CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server_builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])
}

fn client_builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])
}

fn without_sessions(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}

/// Trusts the authority with this fingerprint, which the other side sends along, and any member that it has certified.
#[derive(Debug)]
struct ByFingerprint {
    fingerprint: String,
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let other = || rustls::Error::General("the other side is not a member of the token's cluster".to_owned());
        let is_authority =
            |certificate: &&CertificateDer<'_>| hex::encode(Sha256::digest(certificate)) == self.fingerprint;
        let authority = intermediates.iter().find(is_authority).ok_or_else(other)?;
        let member = presented(Some(std::slice::from_ref(end_entity))).ok_or_else(other)?;
        let name = ServerName::try_from(member.server.certificate_name()).map_err(|_| other())?;
        let roots = Arc::new(roots_of(authority.clone().into_owned())?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
