//! What can be told about the host's network before the first sandbox: looks, asks the kernel to check, and changes
//! nothing.

use std::net::Ipv4Addr;

use isopod_wire::Cidr;

use super::host_network::{HostNetwork, Overlap};
use super::netlink::{Batch, NetlinkError, Socket};
use super::network::NetworkConfig;
use super::nft::{self, Chain, Transaction};
use super::{names, route, rules, sysctl};

/// Legacy iptables are not visible through nftables; the kernel lists their tables here.
const LEGACY_TABLES: &str = "/proc/thread-self/net/ip_tables_names";

/// Something that will, or may, keep sandboxes from working as promised.
#[derive(Debug, thiserror::Error)]
pub enum Finding {
    /// Rules cannot be installed.
    #[error("nftables cannot hold the rules that sandboxes need")]
    NoFilter(#[source] NetlinkError),
    /// Pairs cannot be made.
    #[error("the kernel cannot make veth interfaces")]
    NoVeth(#[source] NetlinkError),
    /// The host's network cannot be listed.
    #[error("the host's network cannot be inspected")]
    NoInspection(#[source] NetlinkError),
    /// Sandboxes could resolve no names.
    #[error("the host has no DNS server that a sandbox can reach")]
    NoResolver,
    /// The server is this host, which sandboxes cannot reach.
    #[error("the DNS server {0} is this host itself, which sandboxes cannot reach")]
    ResolverIsHost(Ipv4Addr),
    /// There is no way out.
    #[error("the host has no default route")]
    NoDefaultRoute,
    /// The pool is taken.
    #[error("the address pool {pool} overlaps the route to {destination} by {interface}")]
    PoolInUse {
        /// The pool.
        pool: Cidr,
        /// The route's destination.
        destination: Cidr,
        /// Where the route leads.
        interface: String,
    },
    /// Our accepting is not enough: every table must.
    #[error("the firewall drops forwarded packets by default (table {table}, chain {chain})")]
    ForwardDropped {
        /// Whose.
        table: String,
        /// Which.
        chain: String,
    },
    /// It may drop forwarded packets, and we cannot see it.
    #[error("legacy iptables rules are loaded, which may drop forwarded packets")]
    LegacyIptables,
    /// Not a fault: the host does not route, so the node switches forwarding on for its uplinks.
    #[error("forwarding is off on this host and will be switched on for its uplinks only")]
    ForwardingOff,
}

impl Finding {
    /// Whether a node cannot start like this.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::NoFilter(_) | Self::NoVeth(_) | Self::NoInspection(_) | Self::PoolInUse { .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFilter(_) => "run as root on a kernel with nf_tables, nft_fib, nft_ct, nft_connlimit and nft_masq",
            Self::NoVeth(_) => "run as root on a kernel with the veth module",
            Self::NoInspection(_) => "run as root in the host's network namespace",
            Self::NoResolver => "configure DNS servers for sandboxes",
            Self::ResolverIsHost(_) => "configure a DNS server that is not this host",
            Self::NoDefaultRoute => "connect the host to a network, or sandboxes stay offline",
            Self::PoolInUse { .. } => "configure another address pool",
            Self::ForwardDropped { .. } | Self::LegacyIptables => {
                "let the firewall accept forwarded packets from and to interfaces named i*, \
                 for Docker in its DOCKER-USER chain"
            }
            Self::ForwardingOff => "nothing to do",
        }
    }
}

/// Everything worth saying about this host.
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

/// The kernel checks the whole ruleset and then drops it, because the batch does not say that it is complete.
fn check_filter(config: &NetworkConfig) -> Result<(), NetlinkError> {
    let mut socket = Socket::open(Some(rustix::net::netlink::NETFILTER))?;
    let table = config.tag.table();
    let mut transaction = Transaction::new(&table);
    rules::install(&mut transaction, &config.rules());
    transaction.rehearse(&mut socket)
}

/// Asks for a pair whose names cannot exist. A kernel that knows veth objects to the names, and only then.
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
