//! Tests of the node's network against a real kernel, in namespaces of their own: one is the host, one the internet
//! behind its uplink, one a private network beside it. They never touch the machine's network. They need root, and are
//! skipped with a message otherwise.

mod lifecycle;
mod policies;
mod reach;
mod timing;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use isopod_wire::NetworkPolicy;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::sysctl;
use crate::{GATEWAY, Network, NetworkConfig, NetworkError, Resolvers, Slot};

const WAIT: Duration = Duration::from_millis(600);
/// How often to wait for what must arrive.
const TRIES: u32 = 50;
const ECHO: u16 = 7000;
const WEB: u16 = 80;
const INTERNET: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const LAN: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);

/// The namespaces of a test. The thread that runs the test is in the host's namespace.
struct World {
    internet: OwnedFd,
    lan: OwnedFd,
}

/// Runs the test on a fresh host with an uplink and a private network.
fn on_a_host(test: impl FnOnce(&World) + Send) {
    thread::scope(|scope| {
        let body = scope.spawn(|| match enter_new_netns() {
            Ok(()) => test(&World::new()),
            Err(error) => eprintln!("skipped: cannot create a network namespace ({error})"),
        });
        body.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

impl World {
    fn new() -> Self {
        let world = Self { internet: new_netns(), lan: new_netns() };
        ip("link set lo up");
        // Whatever the machine's own settings are, this host does not route, and it checks the source of packets only
        // loosely.
        sysctl::write("ipv4/conf/all/forwarding", "0").unwrap();
        sysctl::write("ipv4/conf/all/rp_filter", "2").unwrap();
        ip(&format!("link add up0 mtu 1400 type veth peer name up0 mtu 1400 netns {}", path_of(&world.internet)));
        ip(&format!("link add lan0 type veth peer name lan0 netns {}", path_of(&world.lan)));
        ip("addr add 203.0.113.2/24 brd + dev up0");
        ip("addr add 172.30.0.1/24 dev lan0");
        ip("link set up0 up");
        ip("link set lan0 up");
        ip("route add default via 203.0.113.1");
        within(&world.internet, || {
            ip("link set lo up");
            ip("addr add 203.0.113.1/24 dev up0");
            ip("link set up0 up");
            for address in [INTERNET, ELSEWHERE, PRIVATE, METADATA] {
                ip(&format!("addr add {address}/32 dev lo"));
            }
            ip("route add 203.0.113.2/32 dev up0 src 198.51.100.7");
            ip("route add 10.200.0.0/16 via 203.0.113.2");
            ip("route add 172.30.0.0/24 via 203.0.113.2");
        });
        within(&world.lan, || {
            ip("addr add 172.30.0.2/24 dev lan0");
            ip("link set lan0 up");
            ip("route add default via 172.30.0.1");
        });
        world
    }

    /// A listener on every address of the internet.
    fn serve_tcp(&self, port: u16) -> TcpListener {
        within(&self.internet, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap())
    }

    /// A socket that receives datagrams on every address of the internet. It replies from `INTERNET`.
    fn serve_udp(&self, port: u16) -> UdpSocket {
        within(&self.internet, || udp(port))
    }
}

fn config() -> NetworkConfig {
    NetworkConfig { resolvers: Resolvers::new([PRIVATE]), ..NetworkConfig::new("ab12".parse().unwrap()) }
}

/// A policy may open all private networks.
fn with_private_networks() -> NetworkConfig {
    NetworkConfig { private_networks: isopod_wire::PRIVATE_NETWORKS.to_vec(), ..config() }
}

/// A network with `count` connected sandboxes.
fn with_sandboxes(config: NetworkConfig, count: u32) -> (Network, Vec<OwnedFd>) {
    let network = Network::open(config).unwrap();
    let sandboxes: Vec<_> = (0..count).map(|_| new_netns()).collect();
    for (slot, netns) in (0..).zip(&sandboxes) {
        network.plumb(Slot(slot), netns.as_fd()).unwrap();
    }
    (network, sandboxes)
}

fn policy(deny_internet: bool, allow: &[&str], deny: &[&str]) -> NetworkPolicy {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    NetworkPolicy { deny_internet, allow_out: parse(allow), deny_out: parse(deny) }
}

#[expect(deprecated, reason = "the safe form; a network namespace shares no memory-relevant state")]
fn enter_new_netns() -> Result<(), rustix::io::Errno> {
    rustix::thread::unshare(UnshareFlags::NEWNET)
}

fn new_netns() -> OwnedFd {
    let made = thread::spawn(|| {
        enter_new_netns().unwrap();
        OwnedFd::from(std::fs::File::open("/proc/thread-self/ns/net").unwrap())
    });
    made.join().unwrap()
}

/// Runs the work in that namespace. Sockets that it opens stay there.
fn within<T: Send>(netns: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn path_of(netns: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd())
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_ascii_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

fn dial(from: &OwnedFd, to: Ipv4Addr, port: u16) -> std::io::Result<TcpStream> {
    within(from, || TcpStream::connect_timeout(&SocketAddrV4::new(to, port).into(), WAIT))
}

fn reaches(from: &OwnedFd, to: Ipv4Addr, port: u16) -> bool {
    dial(from, to, port).is_ok()
}

/// Tries all targets at once, because each refused one takes a while. Returns those that were reached.
fn reached<'t>(from: &OwnedFd, targets: &'t [(&'t str, Ipv4Addr, u16)]) -> Vec<&'t str> {
    thread::scope(|scope| {
        let tries: Vec<_> =
            targets.iter().map(|(name, to, port)| (*name, scope.spawn(|| reaches(from, *to, *port)))).collect();
        tries.into_iter().filter_map(|(name, tried)| tried.join().unwrap().then_some(name)).collect()
    })
}

fn udp(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    socket.set_broadcast(true).unwrap();
    socket
}

/// As [`arrives`], for a datagram that must arrive: on a busy machine it takes its time, and the first may be lost.
fn arrives_in_time(from: &UdpSocket, to: Ipv4Addr, at: &UdpSocket) -> SocketAddrV4 {
    (0..TRIES).find_map(|_| arrives(from, to, at)).expect("no datagram arrives")
}

/// Sends a datagram and returns the address from which it arrived, if it did.
fn arrives(from: &UdpSocket, to: Ipv4Addr, at: &UdpSocket) -> Option<SocketAddrV4> {
    let port = at.local_addr().unwrap().port();
    from.send_to(b"datagram", (to, port)).ok()?;
    let mut buffer = [0; 16];
    match at.recv_from(&mut buffer).ok()?.1 {
        std::net::SocketAddr::V4(sender) => Some(sender),
        std::net::SocketAddr::V6(_) => None,
    }
}

/// As [`passes`], for bytes that must arrive.
fn passes_in_time(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    to.set_read_timeout(Some(WAIT * TRIES)).unwrap();
    from.write_all(b"x").unwrap();
    matches!(to.read(&mut [0; 1]), Ok(1))
}

/// Whether bytes that are written to one end arrive at the other.
fn passes(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    to.set_read_timeout(Some(WAIT)).unwrap();
    from.write_all(b"x").unwrap();
    matches!(to.read(&mut [0; 1]), Ok(1))
}

/// The kernel removes the interfaces of a namespace that has ended in its own time.
fn assert_nothing_left() {
    let is_gone = (0..TRIES).any(|_| {
        let is_gone = leftovers().is_empty();
        if !is_gone {
            thread::sleep(WAIT);
        }
        is_gone
    });
    assert!(is_gone, "left: {}", leftovers());
}

/// What is left of a node's network on the host.
fn leftovers() -> String {
    let rules = run("nft", "list ruleset");
    let links: Vec<_> = ip("-o link").lines().filter(|line| line.contains(": iab12-")).map(str::to_owned).collect();
    let forwarding = ["up0", "lan0"].iter().filter(|name| sysctl::is_on(&sysctl::forwarding(name)).unwrap());
    format!("{rules}{}{}", links.concat(), forwarding.copied().collect::<String>())
}
