//! Making the cluster's authority and the certificates of its nodes.

use isopod_store::clock::Timestamp;
use isopod_store::secrets::KeyHash;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};

use crate::server_id::ServerId;

const AUTHORITY_LASTS: Duration = Duration::days(3650);
/// Clocks of other machines may be behind ours.
const GRACE: Duration = Duration::hours(1);

/// A certificate and its private key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn make_authority() -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = authority_params();
    params.not_before = OffsetDateTime::now_utc() - GRACE;
    params.not_after = OffsetDateTime::now_utc() + AUTHORITY_LASTS;
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

pub(crate) fn make_key() -> Result<String, rcgen::Error> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Certifies the key of a node. Returns the certificate in PEM.
pub(crate) fn certify(
    server: &ServerId,
    key: &str,
    authority_key: &str,
    until: Timestamp,
) -> Result<String, rcgen::Error> {
    let issuer = Issuer::new(authority_params(), KeyPair::from_pem(authority_key)?);
    let mut params = CertificateParams::new(vec![server.certificate_name()])?;
    params.distinguished_name = named("Isopod node");
    params.not_before = OffsetDateTime::now_utc().min(moment(until)) - GRACE;
    params.not_after = moment(until);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params.signed_by(&KeyPair::from_pem(key)?, &issuer)?.pem())
}

/// The SHA-256 of the public key of a private key in PEM.
pub(crate) fn hash_of_key(key: &str) -> Result<KeyHash, rcgen::Error> {
    Ok(hash_of_public_key(&KeyPair::from_pem(key)?.subject_public_key_info()))
}

/// `key`: a SubjectPublicKeyInfo in DER.
pub(crate) fn hash_of_public_key(key: &[u8]) -> KeyHash {
    Sha256::digest(key).into()
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("Isopod cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn moment(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.unix_seconds()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
