//! Checks of the host's network before the first sandbox. They read, ask the kernel to validate, and change nothing.

use std::net::Ipv4Addr;

use isopod_wire::Cidr;

use super::host_network::{HostNetwork, Overlap};
use super::netlink::{Batch, NetlinkError, Socket};
use super::network::NetworkConfig;
use super::nft::{self, Chain, Transaction};
use super::{names, route, rules, sysctl};

/// nftables does not show the rules of legacy iptables. The kernel lists their tables here.
const LEGACY_TABLES: &str = "/proc/thread-self/net/ip_tables_names";

/// A condition that prevents sandboxes from working as promised, or may do so.
#[derive(Debug, thiserror::Error)]
pub enum Finding {
    /// The firewall rules cannot be installed.
    #[error("nftables cannot hold the rules that sandboxes need")]
    NoFilter(#[source] NetlinkError),
    /// veth pairs cannot be created.
    #[error("the kernel cannot make veth interfaces")]
    NoVeth(#[source] NetlinkError),
    /// The host's network cannot be listed.
    #[error("the host's network cannot be inspected")]
    NoInspection(#[source] NetlinkError),
    /// Sandboxes could not resolve names.
    #[error("the host has no DNS server that a sandbox can reach")]
    NoResolver,
    /// A DNS server is this host, which sandboxes cannot reach.
    #[error("the DNS server {0} is this host itself, which sandboxes cannot reach")]
    ResolverIsHost(Ipv4Addr),
    #[error("the host has no default route")]
    NoDefaultRoute,
    /// The host uses addresses of the pool.
    #[error("the address pool {pool} overlaps the host's route to {destination} on {interface}")]
    PoolInUse {
        pool: Cidr,
        /// The destination of the host's route.
        destination: Cidr,
        /// The interface of the host's route.
        interface: String,
    },
    /// It is not enough that our table accepts a packet: every table must.
    #[error("the firewall drops forwarded packets by default (table {table}, chain {chain})")]
    ForwardDropped {
        /// The table that drops them.
        table: String,
        /// The base chain whose default is to drop.
        chain: String,
    },
    /// These rules may drop forwarded packets, and nftables does not show them.
    #[error("legacy iptables rules are loaded, which may drop forwarded packets")]
    LegacyIptables,
    /// Not a problem: the host does not route, so the node enables forwarding for its uplinks.
    #[error("forwarding is off on this host; the server enables it for the uplinks only")]
    ForwardingOff,
}

impl Finding {
    /// Whether a node cannot start in this condition.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::NoFilter(_) | Self::NoVeth(_) | Self::NoInspection(_) | Self::PoolInUse { .. })
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFilter(_) => "run as root on a kernel with nf_tables, nft_fib, nft_ct, nft_connlimit and nft_masq",
            Self::NoVeth(_) => "run as root on a kernel with the veth module",
            Self::NoInspection(_) => "run as root in the host's network namespace",
            Self::NoResolver => "add a DNS server with a non-loopback IPv4 address to the host's /etc/resolv.conf",
            Self::ResolverIsHost(_) => "add a DNS server other than this host to its /etc/resolv.conf",
            Self::NoDefaultRoute => "connect the host to a network, or sandboxes have no internet access",
            Self::PoolInUse { .. } => "remove the route, or change it so that it does not overlap the pool",
            Self::ForwardDropped { .. } | Self::LegacyIptables => {
                "let the firewall accept forwarded packets from and to interfaces named i*, \
                 for Docker in its DOCKER-USER chain"
            }
            Self::ForwardingOff => "nothing to do",
        }
    }
}

/// Everything noteworthy about this host's network.
pub fn preflight(config: &NetworkConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(check_filter(config).err().map(Finding::NoFilter));
    findings.extend(check_veth().err().map(Finding::NoVeth));
    match foreign_chains(config) {
        Ok(chains) => findings.extend(chains.into_iter().filter_map(dropping)),
        Err(error) => findings.push(Finding::NoInspection(error)),
    }
    match check_host(config) {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::NoInspection(error)),
    }
    findings.extend(has_legacy_rules().then_some(Finding::LegacyIptables));
    if matches!(sysctl::is_on(&sysctl::forwarding("all")), Ok(false)) {
        findings.push(Finding::ForwardingOff);
    }
    findings
}

/// The kernel validates the whole ruleset and then discards it, because the batch has no end message.
fn check_filter(config: &NetworkConfig) -> Result<(), NetlinkError> {
    let mut socket = Socket::open(Some(rustix::net::netlink::NETFILTER))?;
    let table = config.tag.table();
    let mut transaction = Transaction::new(&table);
    rules::install(&mut transaction, &config.rules());
    transaction.rehearse(&mut socket)
}

/// Requests a pair with impossible names. Only a kernel with veth gets far enough to reject the names.
fn check_veth() -> Result<(), NetlinkError> {
    let mut socket = Socket::open(None)?;
    let mut batch = Batch::default();
    route::add_impossible_veth(&mut batch);
    match socket.transact(&batch) {
        Err(error) if error.refusal() == Some(rustix::io::Errno::INVAL) => Ok(()),
        other => other,
    }
}

fn foreign_chains(config: &NetworkConfig) -> Result<Vec<Chain>, NetlinkError> {
    let mut socket = Socket::open(Some(rustix::net::netlink::NETFILTER))?;
    let own = config.tag.table();
    let chains = nft::chains(&mut socket)?;
    Ok(chains.into_iter().filter(|chain| chain.table != own && !names::is_node_table(&chain.table)).collect())
}

fn dropping(chain: Chain) -> Option<Finding> {
    let sees_ipv4 = matches!(chain.family, nft::FAMILY_INET | nft::FAMILY_IPV4);
    let is_forward = chain.hook == Some(nft::Hook::Forward as u32);
    (sees_ipv4 && is_forward && chain.drops_by_default)
        .then_some(Finding::ForwardDropped { table: chain.table, chain: chain.name })
}

fn check_host(config: &NetworkConfig) -> Result<Vec<Finding>, NetlinkError> {
    let mut socket = Socket::open(None)?;
    let here = HostNetwork::read(&mut socket)?;
    let own = route::addresses(&mut socket)?;
    let servers = config.resolvers.servers();
    let mut findings = Vec::new();
    if let Some(Overlap { destination, interface }) = here.find_overlap(config.pool) {
        findings.push(Finding::PoolInUse { pool: config.pool, destination, interface });
    }
    if !here.has_default_route() {
        findings.push(Finding::NoDefaultRoute);
    }
    findings.extend(servers.is_empty().then_some(Finding::NoResolver));
    findings
        .extend(servers.iter().filter(|server| own.contains(server)).map(|server| Finding::ResolverIsHost(*server)));
    Ok(findings)
}

fn has_legacy_rules() -> bool {
    std::fs::read_to_string(LEGACY_TABLES).is_ok_and(|tables| tables.lines().any(|table| table == "filter"))
}
