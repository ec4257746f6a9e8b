//! A slot: a routed veth pair between the host and a sandbox's network namespace. The host end has the gateway address
//! (the same on every pair) and a route to the sandbox's single address. There is no bridge and no subnet.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use isopod_wire::Cidr;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netlink::{Batch, NetlinkError, Socket};
use super::route::{self, Ipv4Setting, LOOPBACK, Scope};
use super::sysctl::{self, SysctlError};
use super::traffic_counters::TrafficCounters;

/// The gateway of every sandbox. It is link-local, so it cannot clash with another network.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The name of the interface inside the sandbox.
const INSIDE: &str = "eth0";

/// The group of interfaces that are about to be removed: "isop" in ASCII.
const REMOVED_GROUP: u32 = 0x6973_6f70;
/// Small enough that the replies to one batch fit into a socket's receive buffer.
const INTERFACES_PER_BATCH: usize = 64;

/// For kernels that do not update the state of the carrier when it is queried.
const CARRIER_LOOKS: u32 = 100;
const CARRIER_PAUSE: Duration = Duration::from_millis(1);

/// The settings of the host end: it forwards, rejects foreign sources, and answers ARP only for the gateway.
const HOST_SETTINGS: [(Ipv4Setting, u32); 9] = [
    (Ipv4Setting::Forwarding, 1),
    (Ipv4Setting::RpFilter, 1),
    (Ipv4Setting::ArpIgnore, 1),
    (Ipv4Setting::ProxyArp, 0),
    (Ipv4Setting::AcceptLocal, 0),
    (Ipv4Setting::RouteLocalnet, 0),
    (Ipv4Setting::AcceptRedirects, 0),
    (Ipv4Setting::SendRedirects, 0),
    (Ipv4Setting::AcceptSourceRoute, 0),
];

/// Settings inside the sandbox. As on their own machine, users may use low ports and ping without root.
const INSIDE_SYSCTLS: [(&str, &str); 2] =
    [("ipv4/ip_unprivileged_port_start", "0"), ("ipv4/ping_group_range", "0 2147483647")];

/// Why a slot could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A kernel setting could not be written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    #[error("cannot enter the sandbox's network namespace")]
    Enter(#[source] std::io::Error),
    /// The interface disappeared during its setup.
    #[error("the interface {name} is gone")]
    Gone {
        /// The name of the interface.
        name: String,
        source: std::io::Error,
    },
    /// The thread for the work inside the namespace could not be started.
    #[error("cannot start a thread for the sandbox's network namespace")]
    Thread(#[source] std::io::Error),
}

/// The settings of a slot.
#[derive(Clone, Debug)]
pub(super) struct SlotConfig {
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
    pub(super) mtu: u32,
}

/// The kernel changes interfaces one at a time. A writer of IPv6 settings that has to wait for the kernel does not
/// sleep but spins. All threads of this process wait for this lock instead, so there is hardly any spinning.
static TURN: Mutex<()> = Mutex::new(());

fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects the namespace. After a failure, nothing is left behind.
///
/// A thread of its own sets up the inside and then ends, because a thread that could not leave the namespace must never
/// do anything else.
pub(super) fn connect(
    socket: &mut Socket,
    config: &SlotConfig,
    netns: BorrowedFd<'_>,
) -> Result<TrafficCounters, SlotError> {
    thread::scope(|scope| {
        let (inside_is_ready, wait_for_inside) = mpsc::channel();
        let (outside_is_up, wait_for_outside) = mpsc::channel();
        let inside = thread::Builder::new()
            .name("isopod-netns".to_owned())
            .spawn_scoped(scope, move || set_up_inside(config.address, netns, &inside_is_ready, &wait_for_outside))
            .map_err(SlotError::Thread)?;
        let join = || inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if wait_for_inside.recv().is_err() {
            return join().map(|socket| TrafficCounters::new(socket, config.mtu));
        }
        let turn = take_turn();
        add_pair(socket, config, netns)?;
        let outside = set_up_outside(socket, config);
        match &outside {
            Ok(_) => outside_is_up.send(()).unwrap_or_default(),
            Err(_) => drop(outside_is_up),
        }
        let inside = join();
        drop(turn);
        let finished = outside.and_then(|index| Ok((index, inside?))).and_then(|(index, inside)| {
            await_carrier(socket, index)?;
            Ok(TrafficCounters::new(inside, config.mtu))
        });
        if finished.is_err() {
            remove_half_made(socket, config);
        }
        finished
    })
}

fn add_pair(socket: &mut Socket, config: &SlotConfig, netns: BorrowedFd<'_>) -> Result<(), SlotError> {
    let mut batch = Batch::default();
    route::add_veth(&mut batch, &config.interface, INSIDE, netns, config.mtu);
    Ok(socket.transact(&batch)?)
}

fn remove_half_made(socket: &mut Socket, config: &SlotConfig) {
    if let Err(error) = disconnect(socket, std::slice::from_ref(&config.interface)) {
        tracing::warn!(interface = %config.interface, error = %error, "could not remove a half-made interface");
    }
}

/// Removes these pairs. It is not an error if a pair does not exist.
pub(super) fn disconnect(socket: &mut Socket, interfaces: &[String]) -> Result<(), NetlinkError> {
    for part in interfaces.chunks(INTERFACES_PER_BATCH) {
        let mut batch = Batch::default();
        part.iter().for_each(|name| route::set_group(&mut batch, name, REMOVED_GROUP));
        route::delete_group(&mut batch, REMOVED_GROUP);
        let _turn = take_turn();
        socket.transact_tolerating(&batch, Some(Errno::NODEV))?;
    }
    Ok(())
}

/// The end that comes up first has no carrier yet. It can send only after the kernel has noticed the carrier in a work
/// item. On a busy host this takes long enough to lose the first packets, and a connection then waits a second for the
/// retransmission. The end that comes up last, the one inside, is ready at once.
fn await_carrier(socket: &mut Socket, index: u32) -> Result<(), SlotError> {
    for _ in 0..CARRIER_LOOKS {
        if route::is_operational(socket, index)? {
            return Ok(());
        }
        thread::sleep(CARRIER_PAUSE);
    }
    tracing::debug!(index, "the interface still has no carrier; its first packets may be lost");
    Ok(())
}

fn set_up_outside(socket: &mut Socket, config: &SlotConfig) -> Result<u32, SlotError> {
    // Write this before the interface is up, or it gets a link-local address first.
    sysctl::write_if_present(&format!("ipv6/conf/{}/disable_ipv6", config.interface), "1")?;
    let index = index_of(socket, &config.interface)?;
    let mut batch = Batch::default();
    route::set_up(&mut batch, index, &HOST_SETTINGS);
    // With scope link, no program on the host uses this address as its own.
    route::add_address(&mut batch, index, GATEWAY, Scope::Link);
    route::add_route(&mut batch, index, Cidr::new(config.address, 32), None);
    socket.transact(&batch)?;
    Ok(index)
}

/// Does everything that needs no interface first, so that the lock is held only briefly. Returns a socket that is
/// inside the namespace.
fn set_up_inside(
    address: Ipv4Addr,
    netns: BorrowedFd<'_>,
    ready: &Sender<()>,
    outside_is_up: &Receiver<()>,
) -> Result<Socket, SlotError> {
    move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))
        .map_err(|errno| SlotError::Enter(errno.into()))?;
    // The default for new interfaces. Unlike the setting of an existing interface, it can be written at any time.
    sysctl::write_if_present("ipv6/conf/default/disable_ipv6", "1")?;
    for (name, value) in INSIDE_SYSCTLS {
        sysctl::write(name, value)?;
    }
    let mut socket = Socket::open(None)?;
    ready.send(()).unwrap_or_default();
    // If the outside failed, the caller removes the whole slot.
    if outside_is_up.recv().is_err() {
        return Ok(socket);
    }
    let own_ipv6 = format!("ipv6/conf/{INSIDE}/disable_ipv6");
    if !sysctl::is_on(&own_ipv6).unwrap_or(false) {
        sysctl::write_if_present(&own_ipv6, "1")?;
    }
    let index = index_of(&socket, INSIDE)?;
    let mut batch = Batch::default();
    route::set_up(&mut batch, LOOPBACK, &[]);
    route::set_up(&mut batch, index, &[]);
    route::add_address(&mut batch, index, address, Scope::Universe);
    route::add_route(&mut batch, index, Cidr::new(GATEWAY, 32), None);
    route::add_route(&mut batch, index, Cidr::ALL, Some(GATEWAY));
    socket.transact(&batch)?;
    Ok(socket)
}

/// Asks on the socket, so the name is looked up in the socket's namespace.
fn index_of(socket: &Socket, name: &str) -> Result<u32, SlotError> {
    name_to_index(socket, name).map_err(|errno| SlotError::Gone { name: name.to_owned(), source: errno.into() })
}
