//! Making certificates. The authority may certify the given names and nothing else, so that whoever trusts it, and
//! whoever should steal its key, cannot be deceived about any other site.

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use time::{Duration, OffsetDateTime};

use super::names::Names;

pub(super) const AUTHORITY_LASTS: Duration = Duration::days(3650);
/// The longest that strict clients accept from an authority that people added themselves.
pub(super) const CERTIFICATE_LASTS: Duration = Duration::days(820);
/// Clocks of clients may be behind ours.
const GRACE: Duration = Duration::days(1);

/// A certificate and its private key, in PEM.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Makes an authority for these names.
pub(super) fn make_authority(names: &Names, made_at: OffsetDateTime) -> anyhow::Result<Pair> {
    let key = KeyPair::generate().context("could not make a key")?;
    let certificate = authority_params(names, made_at).self_signed(&key).context("could not make an authority")?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes the server's certificate, certified by the authority that was made for these names at that time.
pub(super) fn make_certificate(
    names: &Names,
    authority_made_at: OffsetDateTime,
    authority_key: &str,
    now: OffsetDateTime,
) -> anyhow::Result<Pair> {
    let authority_key = KeyPair::from_pem(authority_key).context("could not read the authority's key")?;
    let issuer = Issuer::new(authority_params(names, authority_made_at), authority_key);
    let mut params = CertificateParams::new(names.in_certificate()).context("could not use the names")?;
    params.distinguished_name = named("Isopod server");
    params.not_before = now - GRACE;
    params.not_after = now + CERTIFICATE_LASTS;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().context("could not make a key")?;
    let certificate = params.signed_by(&key, &issuer).context("could not make a certificate")?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn authority_params(names: &Names, made_at: OffsetDateTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    // The time tells one authority from the next in lists of trusted ones.
    params.distinguished_name = named(&format!("Isopod local authority {}", made_at.unix_timestamp()));
    params.not_before = made_at - GRACE;
    params.not_after = made_at + AUTHORITY_LASTS;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let names_below = names.roots().cloned().map(GeneralSubtree::DnsName);
    let addresses = names.addresses().map(|address| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, bits))
    });
    let permitted_subtrees = names_below.chain(addresses).collect();
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
