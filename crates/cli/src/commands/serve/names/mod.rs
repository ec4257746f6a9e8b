//! Other domains than the server's own, for programs that `isopod env` runs: a loopback address of this server's own, with
//! a resolver on port 53 that knows the domains, and the server itself on port 443 with certificates for them. Nothing on
//! this machine uses the address unless it is told to.

mod address;
mod forward;
mod message;
mod resolver;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use isopod_control::TlsIdentity;
use isopod_node::StateRoot;
use isopod_server::{LocalNames, ServedNames};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::commands::ENV_DIRECTORY;
use crate::commands::tls::{ServerTls, ensure_for_domains};
use address::{forget_address, own_address};
use message::Zone;
use resolver::{serve_tcp, serve_udp};

/// How many addresses are tried: that of a former start may be another program's by now.
const TRIES: usize = 3;
const DNS: u16 = 53;
const HTTPS: u16 = 443;

/// What answers for the domains, until it is dropped.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) domains: Vec<String>,
    pub(super) names: LocalNames,
    pub(super) tls: Option<TlsIdentity>,
    pub(super) listener: Option<TcpListener>,
    /// The resolver.
    _tasks: JoinSet<()>,
}

/// An address with all its ports.
#[derive(Debug)]
struct Bound {
    address: Ipv4Addr,
    https: TcpListener,
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Names {
    /// Answers for these domains, with certificates beside those of `tls`. A server that cannot is still a server: whoever
    /// asks for the names is told the reason.
    pub(super) async fn open(state: &StateRoot, domains: &[String], tls: Option<TlsIdentity>) -> anyhow::Result<Self> {
        if domains.is_empty() {
            return Ok(Self::missing("it answers for no domain but its own, see --env-domains".to_owned(), tls));
        }
        let directory = state.path().join(ENV_DIRECTORY);
        let files = ensure_for_domains(&directory, domains)?;
        let bound = match bind(&directory).await {
            Ok(bound) => bound,
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::warn!("isopod env cannot run programs under other domains: {reason}");
                return Ok(Self::missing(reason, tls));
            }
        };
        let tls = with_certificate(tls, domains, &files)?;
        let authority = read(&files.authority)?;
        let names = ServedNames { domains: domains.to_vec(), address: bound.address, authority };
        let zone = Arc::new(Zone { domains: domains.to_vec(), address: bound.address });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(bound.udp, Arc::clone(&zone)));
        tasks.spawn(serve_tcp(bound.tcp, zone));
        Ok(Self {
            domains: domains.to_vec(),
            names: LocalNames::Served(names),
            tls: Some(tls),
            listener: Some(bound.https),
            _tasks: tasks,
        })
    }

    fn missing(reason: String, tls: Option<TlsIdentity>) -> Self {
        let names = LocalNames::Missing(reason);
        Self { domains: Vec::new(), names, tls, listener: None, _tasks: JoinSet::new() }
    }
}

fn with_certificate(tls: Option<TlsIdentity>, domains: &[String], files: &ServerTls) -> anyhow::Result<TlsIdentity> {
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let made = match tls {
        Some(tls) => tls.with_domains(domains, certificate.as_bytes(), key.as_bytes()),
        None => TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()),
    };
    made.context("could not use the certificate for other domains")
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
}

async fn bind(directory: &Path) -> anyhow::Result<Bound> {
    let mut tried = None;
    for _ in 0..TRIES {
        let address = own_address(directory)?;
        match bind_at(address).await {
            Ok(bound) => return Ok(bound),
            Err(error) => tried = Some(error),
        }
        forget_address(directory)?;
    }
    Err(tried.context("there is no address to try")?)
}

async fn bind_at(address: Ipv4Addr) -> anyhow::Result<Bound> {
    let failed = |port: u16, kind: &str| {
        format!(
            "could not listen on port {port} of {address} for {kind}, perhaps because a program has this port on all addresses"
        )
    };
    Ok(Bound {
        address,
        https: TcpListener::bind((address, HTTPS)).await.with_context(|| failed(HTTPS, "https"))?,
        udp: UdpSocket::bind((address, DNS)).await.with_context(|| failed(DNS, "DNS over UDP"))?,
        tcp: TcpListener::bind((address, DNS)).await.with_context(|| failed(DNS, "DNS over TCP"))?,
    })
}
