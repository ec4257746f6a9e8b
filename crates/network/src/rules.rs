//! The node's nftables table with the rules for all sandboxes. The rules match the prefix of the interface's name, so a
//! sandbox without a policy of its own needs no entry here.
//!
//! ```text
//! prerouting   from a sandbox: drop IPv6, and packets whose source does not belong to the interface
//! input        from a sandbox: drop everything that is addressed to this host, at any of its addresses
//! forward      from a sandbox → out, to a sandbox → into, else: the host routes no more than it did before
//! out          drop neighbours, this host, metadata …; the slot's chain; drop private networks; accept known flows
//! dns          DNS servers on port 53: the slot's chain, then admitted
//! into         only replies, and the slot's chain again, so that a denied flow is cut in both directions
//! admitted     known flows, and new ones up to the limit
//! postrouting  packets that leave this host get its address as their source
//! ```

use std::net::Ipv4Addr;

use isopod_wire::{Cidr, PRIVATE_NETWORKS};

use super::names::Tag;
use super::nft::{
    Base, Expression as E, FAMILY_IPV4, FAMILY_IPV6, Hook, Meta, Range, STATE_ESTABLISHED, STATE_NEW, STATE_RELATED,
    STATUS_REDIRECTED, SetId, Transaction, Verdict,
};
use super::ranges::merge;

/// Maps the name of an interface to the chain of its slot. Only slots with a policy are in it.
pub(super) const POLICIES: &str = "policies";
/// The interfaces on which we enabled forwarding. The set is in the kernel so that it survives a crash of the server.
pub(super) const SWITCHED: &str = "switched";
/// The chain to which a slot's chain sends the packets that it allows.
pub(super) const ADMITTED: &str = "admitted";
/// Counts the connections of each sandbox.
const FLOWS: &str = "flows";
const FLOWS_SIZE: u32 = 65_535;
const FILTER_PRIORITY: i32 = -10;
/// Runs before connection tracking, so that a forged packet leaves no trace there.
const RAW_PRIORITY: i32 = -300;
const SOURCE_NAT_PRIORITY: i32 = 100;

const NO_STATE: [u8; 4] = [0; 4];
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const DNS_PORT: u16 = 53;

/// Never reachable, whatever a policy allows: "this network", loopback, link-local with the metadata services of
/// clouds, Azure's metadata service (a public address), multicast, and the reserved block with the broadcast address.
const NEVER: [Cidr; 6] = [
    Cidr::new(Ipv4Addr::UNSPECIFIED, 8),
    Cidr::new(Ipv4Addr::new(127, 0, 0, 0), 8),
    Cidr::new(Ipv4Addr::new(169, 254, 0, 0), 16),
    Cidr::new(Ipv4Addr::new(168, 63, 129, 16), 32),
    Cidr::new(Ipv4Addr::new(224, 0, 0, 0), 4),
    Cidr::new(Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The settings that the table depends on.
#[derive(Clone, Debug)]
pub(super) struct RulesConfig {
    pub(super) tag: Tag,
    pub(super) pool: Cidr,
    pub(super) resolvers: Vec<Ipv4Addr>,
    pub(super) max_connections: u32,
}

/// Creates the table, or updates its common rules and leaves the slots' chains as they are.
pub(super) fn install(transaction: &mut Transaction<'_>, config: &RulesConfig) {
    transaction.ensure_table();
    transaction.ensure_verdict_map(POLICIES);
    transaction.ensure_interface_set(SWITCHED);
    transaction.ensure_counting_set(FLOWS, FLOWS_SIZE);
    for (name, base) in chains() {
        transaction.ensure_chain(name, base);
        transaction.flush_chain(name);
    }
    let prefix = config.tag.interface_prefix();
    let mut writer = Writer { transaction, config, prefix: prefix.as_bytes() };
    writer.prerouting();
    writer.input();
    writer.forward();
    writer.out();
    writer.dns();
    writer.towards_sandbox();
    writer.admitted();
    writer.postrouting();
}

fn chains() -> [(&'static str, Option<Base>); 8] {
    let filter = |hook, priority| Some(Base { kind: "filter", hook, priority });
    [
        ("prerouting", filter(Hook::Prerouting, RAW_PRIORITY)),
        ("input", filter(Hook::Input, FILTER_PRIORITY)),
        ("forward", filter(Hook::Forward, FILTER_PRIORITY)),
        ("postrouting", Some(Base { kind: "nat", hook: Hook::Postrouting, priority: SOURCE_NAT_PRIORITY })),
        ("out", None),
        ("dns", None),
        ("into", None),
        (ADMITTED, None),
    ]
}

struct Writer<'w, 't> {
    transaction: &'w mut Transaction<'t>,
    config: &'w RulesConfig,
    prefix: &'w [u8],
}

impl Writer<'_, '_> {
    fn prerouting(&mut self) {
        let from_sandbox = [E::Load(Meta::InputName), E::Equal(self.prefix)];
        let is_ipv6 = [E::Load(Meta::Family), E::Equal(&[FAMILY_IPV6])];
        self.rule("prerouting", &[&from_sandbox, &is_ipv6, &[E::Then(Verdict::Drop)]]);
        // A strict rp_filter on the interface is not enough, because a loose one for "all" interfaces overrides it.
        let is_forged = [E::LoadWayBack, E::Equal(&[0; 4])];
        self.rule("prerouting", &[&from_sandbox, &is_forged, &[E::Then(Verdict::Drop)]]);
    }

    fn input(&mut self) {
        self.rule("input", &[&[E::Load(Meta::InputName), E::Equal(self.prefix), E::Then(Verdict::Drop)]]);
    }

    fn forward(&mut self) {
        self.rule("forward", &[&[E::Load(Meta::InputName), E::Equal(self.prefix), E::Then(Verdict::Goto("out"))]]);
        self.rule("forward", &[&[E::Load(Meta::OutputName), E::Equal(self.prefix), E::Then(Verdict::Goto("into"))]]);
        // We enabled forwarding on these interfaces for replies only. That must not make the host a router for its
        // neighbours. Replies to other nodes' sandboxes on this host pass.
        let was_no_router = [E::Load(Meta::InputName), E::InNamed(SWITCHED)];
        self.rule("forward", &[&was_no_router, &not_in_state(&KNOWN), &[E::Then(Verdict::Drop)]]);
    }

    fn out(&mut self) {
        let drop = [E::Then(Verdict::Drop)];
        let is_ipv4 = [E::Load(Meta::Family), E::Equal(&[FAMILY_IPV4])];
        self.rule("out", &[&[E::Load(Meta::Family), E::NotEqual(&[FAMILY_IPV4])], &drop]);
        // A packet that connection tracking cannot classify would leave with the sandbox's own address.
        self.rule("out", &[&not_in_state(&TRACKED), &drop]);
        self.rule("out", &[&[E::Load(Meta::OutputName), E::Equal(self.prefix)], &drop]);
        self.resolvers();
        // A port of this host that is redirected to a container is still a service of this host.
        self.rule("out", &[&[E::LoadStatus, E::Mask(&REDIRECTED), E::NotEqual(&NO_STATE)], &drop]);
        let never = self.addresses(NEVER.iter().chain([&self.config.pool]));
        self.rule("out", &[&is_ipv4, &[E::LoadDestination, E::In(never)], &drop]);
        // The slot's rules come before the known flows, so that a new policy also cuts open flows.
        self.rule("out", &[&[E::Load(Meta::InputName), E::Map(POLICIES)]]);
        // This too comes before the known flows: when a policy no longer opens a private network, open flows to it are
        // cut.
        let private = self.addresses(PRIVATE_NETWORKS.iter());
        self.rule("out", &[&is_ipv4, &[E::LoadDestination, E::In(private)], &drop]);
        self.rule("out", &[&in_state(&KNOWN), &[E::Then(Verdict::Accept)]]);
        self.rule("out", &[&[E::Then(Verdict::Goto(ADMITTED))]]);
    }

    /// The DNS servers come before the addresses that are never reachable. A cloud's DNS server may be at its metadata
    /// address, of which only port 53 is then open. A cluster's DNS server may be an address that is redirected.
    fn resolvers(&mut self) {
        if self.config.resolvers.is_empty() {
            return;
        }
        for transport in [UDP, TCP] {
            let networks: Vec<_> = self.config.resolvers.iter().map(|address| Cidr::new(*address, 32)).collect();
            let resolvers = self.addresses(networks.iter());
            let to_resolver = [E::LoadDialled, E::In(resolvers)];
            let is_transport = [E::Load(Meta::Transport), E::Equal(&[transport])];
            let is_dns = [E::LoadPort, E::Equal(&DNS_PORT.to_be_bytes()), E::Then(Verdict::Goto("dns"))];
            self.rule("out", &[&to_resolver, &is_transport, &is_dns]);
        }
    }

    /// A sandbox without internet access must not reach the internet through DNS either.
    fn dns(&mut self) {
        self.rule("dns", &[&[E::Load(Meta::InputName), E::Map(POLICIES)]]);
        self.rule("dns", &[&[E::Then(Verdict::Goto(ADMITTED))]]);
    }

    /// New flows to a sandbox are dropped before its own chain runs, because a policy only allows outgoing flows.
    fn towards_sandbox(&mut self) {
        let drop = [E::Then(Verdict::Drop)];
        self.rule("into", &[&[E::Load(Meta::Family), E::NotEqual(&[FAMILY_IPV4])], &drop]);
        self.rule("into", &[&not_in_state(&KNOWN), &drop]);
        self.rule("into", &[&[E::Load(Meta::OutputName), E::Map(POLICIES)]]);
        self.rule("into", &[&[E::Then(Verdict::Accept)]]);
    }

    fn admitted(&mut self) {
        self.rule(ADMITTED, &[&in_state(&KNOWN), &[E::Then(Verdict::Accept)]]);
        let too_many = [E::Load(Meta::InputName), E::MoreConnectionsThan(FLOWS, self.config.max_connections)];
        self.rule(ADMITTED, &[&too_many, &[E::Then(Verdict::Drop)]]);
        self.rule(ADMITTED, &[&[E::Then(Verdict::Accept)]]);
    }

    fn postrouting(&mut self) {
        let pool = self.addresses([&self.config.pool].into_iter());
        let is_ipv4 = [E::Load(Meta::Family), E::Equal(&[FAMILY_IPV4])];
        let from_pool = [E::LoadSource, E::In(pool)];
        let leaves = [E::Load(Meta::OutputName), E::NotEqual(self.prefix), E::Masquerade];
        self.rule("postrouting", &[&is_ipv4, &from_pool, &leaves]);
    }

    fn rule(&mut self, chain: &str, parts: &[&[E<'_>]]) {
        self.transaction.rule(chain, &parts.concat());
    }

    fn addresses<'c>(&mut self, networks: impl Iterator<Item = &'c Cidr>) -> SetId {
        let ranges: Vec<Range> = merge(networks);
        self.transaction.address_set(&ranges)
    }
}

/// The packet belongs to a flow that was accepted before.
const KNOWN: [u8; 4] = (STATE_ESTABLISHED | STATE_RELATED).to_ne_bytes();
/// The packet belongs to any flow.
const TRACKED: [u8; 4] = (STATE_ESTABLISHED | STATE_RELATED | STATE_NEW).to_ne_bytes();

const REDIRECTED: [u8; 4] = STATUS_REDIRECTED.to_ne_bytes();

fn in_state(states: &[u8; 4]) -> [E<'_>; 3] {
    [E::LoadState, E::Mask(states), E::NotEqual(&NO_STATE)]
}

fn not_in_state(states: &[u8; 4]) -> [E<'_>; 3] {
    [E::LoadState, E::Mask(states), E::Equal(&NO_STATE)]
}
