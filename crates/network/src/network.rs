//! The network of one node: its rules, its slots and their policies.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isopod_wire::{Cidr, NetworkPolicy};

use crate::host_network::{HostNetwork, Overlap};
use crate::names::{Slot, Tag};
use crate::netlink::{NetlinkError, Socket};
use crate::nft::{self, Range, Transaction};
use crate::policy::{self, Allowed};
use crate::resolver::Resolvers;
use crate::rules::{self, RulesConfig};
use crate::slot::{self, GATEWAY, SlotConfig, SlotError};
use crate::traffic_counters::TrafficCounters;
use crate::uplink::{self, UplinkError};
use crate::{flows, route};

/// The default pool.
pub const DEFAULT_POOL: Cidr = Cidr::new(Ipv4Addr::new(10, 200, 0, 0), 16);
/// The default limit for a sandbox's open connections.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 4096;
/// The MTU for hosts without an uplink, which is Ethernet's.
const DEFAULT_MTU: u32 = 1500;
/// The smallest MTU with which IPv4 works on every path.
const MIN_MTU: u32 = 576;

/// The settings of a node's network.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Identifies this node on its host.
    pub tag: Tag,
    /// The addresses for sandboxes.
    pub pool: Cidr,
    /// The DNS servers that sandboxes may use.
    pub resolvers: Resolvers,
    /// The private networks (within 10/8, 172.16/12, 192.168/16, 100.64/10) that policies may open.
    pub private_networks: Vec<Cidr>,
    /// The limit for a sandbox's open connections.
    pub max_connections: u32,
}

impl NetworkConfig {
    /// The default settings, with the host's DNS servers.
    pub fn new(tag: Tag) -> Self {
        Self {
            tag,
            pool: DEFAULT_POOL,
            resolvers: Resolvers::of_host(),
            private_networks: Vec::new(),
            max_connections: DEFAULT_MAX_CONNECTIONS,
        }
    }

    pub(crate) fn rules(&self) -> RulesConfig {
        RulesConfig {
            tag: self.tag,
            pool: self.pool,
            resolvers: self.resolvers.servers().to_vec(),
            max_connections: self.max_connections,
        }
    }

    /// The addresses, besides the internet, that must be reachable.
    fn resolver_ranges(&self) -> Vec<Range> {
        self.resolvers.servers().iter().map(|server| (*server, *server)).collect()
    }
}

/// A sandbox's network as the sandbox sees it.
#[derive(Debug)]
pub struct SandboxView {
    pub address: Ipv4Addr,
    /// Where the sandbox sends all its packets.
    pub gateway: Ipv4Addr,
    /// Shows later whether the network was ever used.
    pub counters: TrafficCounters,
}

/// Why a network operation failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The host already uses addresses of the pool.
    #[error("the address pool {pool} overlaps the host's route to {destination} on {interface}")]
    PoolInUse {
        pool: Cidr,
        /// The destination of the host's route.
        destination: Cidr,
        /// The interface of the host's route.
        interface: String,
    },
    /// The pool has no address for the slot.
    #[error("slot {slot} has no address in the pool {pool}")]
    PoolTooSmall {
        /// The slot, counted from zero.
        slot: Slot,
        pool: Cidr,
    },
    /// The slot could not be connected.
    #[error("cannot connect slot {slot} to the network")]
    Plumb {
        /// The slot that has no network now.
        slot: Slot,
        source: SlotError,
    },
    #[error("cannot disconnect slots from the network")]
    Unplumb(#[source] NetlinkError),
    /// The policy could not be applied. The previous one is still in force.
    #[error("cannot change the network policy of slot {slot}")]
    Policy {
        /// The slot that keeps its previous policy.
        slot: Slot,
        source: NetlinkError,
    },
    /// The rules for all sandboxes could not be installed.
    #[error("cannot install the firewall rules")]
    Rules(#[source] NetlinkError),
    /// The host's routes and interfaces could not be listed.
    #[error("cannot inspect the host's network")]
    Inspect(#[source] NetlinkError),
    /// Replies from outside cannot be forwarded.
    #[error("cannot set up forwarding on the host's interfaces")]
    Forwarding(#[source] UplinkError),
}

/// The network of one node.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    /// Idle sockets. Each caller takes one or opens another, so that slots can be connected concurrently.
    idle: Mutex<Vec<Socket>>,
    filter: Mutex<Filter>,
    /// The host's network when it was last read. Reading it takes longer the more slots there are.
    host_network: Mutex<HostNetwork>,
    /// The MTU of the narrowest uplink, so that no packet of a sandbox is too large for the way out.
    mtu: AtomicU32,
}

/// nftables runs one transaction at a time anyway. The lock also keeps the list of policies in step with the kernel.
#[derive(Debug)]
struct Filter {
    socket: Socket,
    with_policy: BTreeSet<Slot>,
}

impl Network {
    /// Installs the node's rules, or takes over the rules of an earlier process, including the policies of its slots.
    pub fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
        let filter_socket = Socket::open(Some(rustix::net::netlink::NETFILTER)).map_err(NetworkError::Rules)?;
        let network = Self {
            config,
            idle: Mutex::default(),
            filter: Mutex::new(Filter { socket: filter_socket.with_large_send_buffer(), with_policy: BTreeSet::new() }),
            host_network: Mutex::default(),
            mtu: AtomicU32::new(DEFAULT_MTU),
        };
        network.look_around()?;
        network.check_pool()?;
        network.install_rules()?;
        network.reach_the_world()?;
        Ok(network)
    }

    /// Adapts to changed routes and uplinks of the host. Call it periodically.
    pub fn refresh(&self) -> Result<(), NetworkError> {
        self.look_around()?;
        uplink::yield_to_routing_host(&mut self.filter().socket, self.config.tag).map_err(NetworkError::Forwarding)?;
        self.reach_the_world()
    }

    /// Connects a namespace that has no network yet. The namespace must belong to the initial user namespace, or root
    /// in the sandbox could undo the setup. A policy that an earlier sandbox left on the slot is removed first.
    pub fn plumb(&self, slot: Slot, netns: BorrowedFd<'_>) -> Result<SandboxView, NetworkError> {
        let address = self.address(slot)?;
        self.clear_policy(slot)?;
        let mtu = self.mtu.load(Ordering::Relaxed);
        let config = SlotConfig { interface: self.config.tag.interface(slot), address, mtu };
        let source = match self.with_route_socket(|socket| slot::connect(socket, &config, netns)) {
            Ok(Ok(counters)) => return Ok(SandboxView { address, gateway: GATEWAY, counters }),
            Ok(Err(error)) => error,
            Err(error) => error.into(),
        };
        Err(NetworkError::Plumb { slot, source })
    }

    /// Whether a slot's namespace may serve another sandbox as it is. Call this after its last process has ended and
    /// its policy is cleared.
    pub fn is_as_new(&self, counters: &mut TrafficCounters) -> bool {
        let saw_nothing = counters.saw_nothing().unwrap_or_else(|error| {
            tracing::debug!(error = %error, "could not find out whether a sandbox's network was used");
            false
        });
        saw_nothing && counters.mtu() == self.mtu.load(Ordering::Relaxed)
    }

    /// Disconnects a slot. See [`Self::unplumb_all`].
    pub fn unplumb(&self, slot: Slot) -> Result<(), NetworkError> {
        self.unplumb_all(&[slot].into())
    }

    /// Disconnects slots and deletes their policies and connections. Only then may the slots be used again. Idempotent.
    /// This takes the kernel tens of milliseconds, hardly longer for many slots than for one, so callers should batch
    /// ended slots.
    pub fn unplumb_all(&self, slots: &BTreeSet<Slot>) -> Result<(), NetworkError> {
        if slots.is_empty() {
            return Ok(());
        }
        let addresses: BTreeSet<_> = slots.iter().filter_map(|slot| slot.address(self.config.pool)).collect();
        let interfaces: Vec<_> = slots.iter().map(|slot| self.config.tag.interface(*slot)).collect();
        self.with_route_socket(|socket| slot::disconnect(socket, &interfaces))
            .and_then(|done| done)
            .map_err(NetworkError::Unplumb)?;
        self.clear_policies(slots)?;
        // If connection tracking has no netlink interface, the connections end by their timeouts.
        let forgotten = Socket::open(Some(rustix::net::netlink::NETFILTER))
            .and_then(|mut socket| flows::forget(&mut socket, &addresses));
        if let Err(error) = forgotten {
            tracing::warn!(error = %error, "could not delete the tracked connections of ended slots");
        }
        Ok(())
    }

    /// Applies the policy atomically, also to open connections.
    pub fn set_policy(&self, slot: Slot, policy: &NetworkPolicy) -> Result<(), NetworkError> {
        if policy::is_default(policy) {
            return self.clear_policy(slot);
        }
        let table = self.config.tag.table();
        let allowed = Allowed::of(policy, &self.config.private_networks, self.config.resolvers.servers());
        let mut transaction = Transaction::new(&table);
        policy::replace(&mut transaction, self.config.tag, slot, policy, &allowed);
        {
            let mut filter = self.filter();
            transaction.commit(&mut filter.socket).map_err(|source| NetworkError::Policy { slot, source })?;
            filter.with_policy.insert(slot);
        }
        // Allowed networks may be behind another interface than the internet.
        if allowed.networks.is_empty() { Ok(()) } else { self.reach(&allowed.networks).map(drop) }
    }

    /// Removes the slot's own policy. The rules for all sandboxes stay.
    pub fn clear_policy(&self, slot: Slot) -> Result<(), NetworkError> {
        self.clear_policies(&[slot].into())
    }

    fn clear_policies(&self, slots: &BTreeSet<Slot>) -> Result<(), NetworkError> {
        let mut filter = self.filter();
        let present: Vec<_> = filter.with_policy.intersection(slots).copied().collect();
        let Some(first) = present.first() else { return Ok(()) };
        let table = self.config.tag.table();
        let mut transaction = Transaction::new(&table);
        present.iter().for_each(|slot| policy::remove(&mut transaction, self.config.tag, *slot));
        transaction.commit(&mut filter.socket).map_err(|source| NetworkError::Policy { slot: *first, source })?;
        filter.with_policy.retain(|slot| !present.contains(slot));
        Ok(())
    }

    /// The slots that have an interface on the host.
    pub fn plumbed_slots(&self) -> Result<BTreeSet<Slot>, NetworkError> {
        let links = self.with_route_socket(route::links).and_then(|links| links).map_err(NetworkError::Inspect)?;
        Ok(links.iter().filter_map(|link| self.config.tag.slot_of_interface(&link.name)).collect())
    }

    /// The slots that have a policy of their own.
    pub fn policy_slots(&self) -> BTreeSet<Slot> {
        self.filter().with_policy.clone()
    }

    /// Removes everything that belongs to slots that are not in use, and returns those slots.
    pub fn sweep(&self, live: &BTreeSet<Slot>) -> Result<BTreeSet<Slot>, NetworkError> {
        let found = &self.plumbed_slots()? | &self.policy_slots();
        let stale = &found - live;
        self.unplumb_all(&stale)?;
        Ok(stale)
    }

    /// Removes the node's table and undoes the forwarding on the uplinks. Call this only after the last sandbox has
    /// ended: without the table, running sandboxes could reach the host's whole network.
    pub fn close(self) -> Result<(), NetworkError> {
        uplink::remove_table(&mut self.filter().socket, self.config.tag).map_err(NetworkError::Forwarding)
    }

    pub fn address(&self, slot: Slot) -> Result<Ipv4Addr, NetworkError> {
        slot.address(self.config.pool).ok_or(NetworkError::PoolTooSmall { slot, pool: self.config.pool })
    }

    /// The DNS servers and settings for a sandbox's `/etc/resolv.conf`.
    pub fn resolvers(&self) -> &Resolvers {
        &self.config.resolvers
    }

    fn look_around(&self) -> Result<(), NetworkError> {
        let seen = self.with_route_socket(HostNetwork::read);
        *lock(&self.host_network) = seen.and_then(|seen| seen).map_err(NetworkError::Inspect)?;
        Ok(())
    }

    fn check_pool(&self) -> Result<(), NetworkError> {
        let pool = self.config.pool;
        match lock(&self.host_network).find_overlap(pool) {
            None => Ok(()),
            Some(Overlap { destination, interface }) => Err(NetworkError::PoolInUse { pool, destination, interface }),
        }
    }

    fn install_rules(&self) -> Result<(), NetworkError> {
        let table = self.config.tag.table();
        let mut transaction = Transaction::new(&table);
        rules::install(&mut transaction, &self.config.rules());
        let mut filter = self.filter();
        transaction.commit(&mut filter.socket).map_err(NetworkError::Rules)?;
        let chains = nft::chains(&mut filter.socket).map_err(NetworkError::Rules)?;
        let ours = chains.iter().filter(|chain| chain.family == nft::FAMILY_INET && chain.table == table);
        filter.with_policy = ours.filter_map(|chain| Slot::of_chain(&chain.name)).collect();
        Ok(())
    }

    fn reach_the_world(&self) -> Result<(), NetworkError> {
        let narrowest = self.reach(&self.config.resolver_ranges())?.unwrap_or(DEFAULT_MTU);
        self.mtu.store(narrowest.clamp(MIN_MTU, DEFAULT_MTU), Ordering::Relaxed);
        Ok(())
    }

    /// Makes sure that replies from the internet and from these networks are forwarded. Returns the smallest MTU of the
    /// uplinks.
    fn reach(&self, targets: &[Range]) -> Result<Option<u32>, NetworkError> {
        let uplinks = lock(&self.host_network).find_uplinks(targets);
        uplink::switch_on(&mut self.filter().socket, self.config.tag, &uplinks).map_err(NetworkError::Forwarding)?;
        Ok(uplinks.iter().map(|link| link.mtu).min())
    }

    /// Lends a socket. Each use reads all its replies, so the next use finds none of them.
    fn with_route_socket<T>(&self, work: impl FnOnce(&mut Socket) -> T) -> Result<T, NetlinkError> {
        let idle = lock(&self.idle).pop();
        let mut socket = match idle {
            Some(socket) => socket,
            None => Socket::open(None)?,
        };
        let result = work(&mut socket);
        lock(&self.idle).push(socket);
        Ok(result)
    }

    fn filter(&self) -> MutexGuard<'_, Filter> {
        lock(&self.filter)
    }
}

/// The guarded values are consistent at every moment, so a panic elsewhere does not invalidate them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
