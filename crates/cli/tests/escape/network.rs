//! Cases 13 and 14: whom a sandbox reaches. Nothing here leaves this machine: what stands for the internet is a network
//! namespace behind a veth pair of the test's own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use isopod_client::guest::Guest;
use isopod_testkit::TestSandbox;
use isopod_wire::NetworkPolicy;
use isopod_wire::node::{NodeApi, Target};
use tokio::io::AsyncReadExt;

use crate::arena::Arena;
use crate::probe::probe_as;
use crate::table::Who;

#[tokio::test]
async fn case_13_host_neighbours_and_metadata_are_out_of_reach() {
    let arena =
        Arena::start("13 Network: the host by every address, neighbours, metadata, IPv6, raw sockets, spoofing").await;
    let host = HostServices::start();
    let neighbour = own_address(&arena.neighbour.guest).await;
    serve_inside(&arena.neighbour.guest, 7777).await;
    let script = host.probe(neighbour, 7777);
    arena.probe(&script).await;
    host.assert_nobody_came();
    // Allowing everything does not open what is closed to all.
    let everything =
        NetworkPolicy { allow_out: vec!["0.0.0.0/0".parse().expect("a network")], ..NetworkPolicy::default() };
    arena.platform.node.set_network(&arena.attacker.incarnation, everything).await.expect("it can be changed");
    probe_as(&arena.table, &arena.attacker, Who::Root, &script).await;
    host.assert_nobody_came();
    let dialled = arena.platform.node.dial(&arena.neighbour.incarnation, Target::Port(7777)).await;
    let mut answer = String::new();
    dialled.expect("the host side reaches it").read_to_string(&mut answer).await.expect("it answers");
    assert_eq!(answer, "neighbour\n");
    arena.finish().await;
}

/// Listeners of the host that must not hear anything.
pub(crate) struct HostServices {
    port: u16,
    addresses: Vec<Ipv4Addr>,
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl HostServices {
    /// On every address, and on loopback alone.
    pub(crate) fn start() -> Self {
        let any = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = any.local_addr().expect("it is bound").port();
        let mut tcp = vec![any];
        tcp.extend(
            TcpListener::bind(SocketAddr::from(([0u16; 8], port))).or_else(|_| TcpListener::bind("[::1]:0")).ok(),
        );
        let udp = vec![UdpSocket::bind(("0.0.0.0", port)).expect("a port")];
        tcp.iter().for_each(|listener| listener.set_nonblocking(true).expect("a socket"));
        udp.iter().for_each(|socket| socket.set_nonblocking(true).expect("a socket"));
        let services = Self { port, addresses: host_addresses(), tcp, udp };
        services.assert_reachable_from_the_host();
        services
    }

    /// The services are there: what the sandbox does not reach is closed to it, not missing.
    fn assert_reachable_from_the_host(&self) {
        for address in &self.addresses {
            let address = SocketAddr::from((*address, self.port));
            TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("the host reaches itself");
            self.tcp[0].accept().expect("it came");
        }
    }

    /// A probe that tries to reach these services, and a neighbour that listens on this port.
    pub(crate) fn probe(&self, neighbour: Ipv4Addr, neighbour_port: u16) -> String {
        let own = self.addresses.iter().map(|ip| ("the host's own addresses", ip.to_string(), self.port));
        let others = [
            ("the gateway", "169.254.1.1", self.port),
            ("the host's loopback", "127.0.0.1", self.port),
            ("the host's loopback, elsewhere", "127.0.0.53", self.port),
            ("the host's loopback, by 0.0.0.0", "0.0.0.0", self.port),
            ("the metadata service", "169.254.169.254", self.port),
            ("the metadata service of containers", "169.254.170.2", self.port),
            ("the metadata service, port 80", "169.254.169.254", 80),
        ];
        let others = others.map(|(name, address, port)| (name, address.to_owned(), port));
        let neighbours = [("the neighbour", neighbour.to_string(), neighbour_port)];
        let targets = own.chain(others).chain(neighbours);
        format!(
            "TARGETS = [{}]\nNEIGHBOUR = \"{neighbour}\"\nPORT = {}\n{}",
            targets.map(|(name, address, port)| format!("({name:?}, {address:?}, {port}),")).collect::<String>(),
            self.port,
            include_str!("probes/network.py")
        )
    }

    #[track_caller]
    pub(crate) fn assert_nobody_came(&self) {
        for listener in &self.tcp {
            assert!(listener.accept().is_err(), "somebody connected to the host");
        }
        for socket in &self.udp {
            assert!(socket.recv(&mut [0; 16]).is_err(), "a datagram reached the host");
        }
    }
}

fn host_addresses() -> Vec<Ipv4Addr> {
    let listed = run("ip", "-4 -o addr show");
    let words = listed.split_whitespace().collect::<Vec<_>>();
    let addresses = words.windows(2).filter(|pair| pair[0] == "inet");
    addresses.filter_map(|pair| pair[1].split('/').next()?.parse().ok()).collect()
}

/// Connecting a datagram socket sends nothing and tells the address.
pub(crate) async fn own_address(guest: &Guest) -> Ipv4Addr {
    let ask =
        "python3 -c 'import socket; s = socket.socket(2, 2); s.connect((\"192.0.2.1\", 9)); print(s.getsockname()[0])'";
    let told = guest.clone().with_user("user").run(ask).await.expect("the guest answers");
    told.text().trim().parse().expect("an address")
}

pub(crate) async fn serve_inside(guest: &Guest, port: u16) {
    let serve = format!(
        "nohup python3 -c 'import socket\ns = socket.create_server((\"0.0.0.0\", {port}))\nopen(\"/tmp/listens\", \"w\")\nwhile True:\n c = s.accept()[0]; c.send(b\"neighbour\\n\"); c.close()' >/dev/null 2>&1 & \
         while ! [ -e /tmp/listens ]; do sleep 0.05; done"
    );
    let started = guest.clone().with_user("user").run(serve.as_str()).await.expect("the guest answers");
    assert!(started.ended.is_success(), "{}", started.text());
}

#[tokio::test]
async fn case_14_egress_rules_hold_for_every_spelling_of_an_address() {
    let arena = Arena::start("14 Egress rules").await;
    let internet = Internet::start();
    let policy = |deny_internet: bool, allow: &[&str], deny: &[&str]| NetworkPolicy {
        deny_internet,
        allow_out: allow.iter().map(|text| text.parse().expect("a network")).collect(),
        deny_out: deny.iter().map(|text| text.parse().expect("a network")).collect(),
    };
    let (address, network) = (internet.far.to_string(), format!("{}/30", internet.near));
    let all = spellings(internet.far);
    let cases = [
        ("no policy", policy(false, &[], &[]), true),
        ("an empty allow list with internet off", policy(true, &[], &[]), false),
        ("a denied address", policy(false, &[], &[&address]), false),
        ("a denied network", policy(false, &[], &[&network]), false),
        ("allow wins over deny", policy(false, &[&address], &[&network]), true),
        ("allow wins over internet off", policy(true, &[&address], &[]), true),
        ("another address allowed", policy(true, &["192.0.2.7"], &[]), false),
    ];
    for who in Who::BOTH {
        for (name, policy, open) in &cases {
            arena
                .platform
                .node
                .set_network(&arena.attacker.incarnation, policy.clone())
                .await
                .expect("it can be changed");
            let reached = reached(&arena.attacker, who, &all).await;
            let expected = if *open { all.len() } else { 0 };
            assert_eq!(reached.len(), expected, "{name} as {}: {reached:?}", who.name());
            let how = if *open { "reached" } else { "denied in all 8 spellings" };
            arena.table.held(*name, who, how);
        }
    }
    for bad in ["0x7f000001", "2130706433", "1.2.3", "1.2.3.4/33", "example.com", "1.2.3.4."] {
        assert!(bad.parse::<isopod_wire::Cidr>().is_err(), "{bad}");
    }
    arena.table.held_for_all("rules in decimal, hex, short or with a trailing dot", "refused");
    drop(internet);
    arena.finish().await;
}

#[tokio::test]
async fn case_14_no_policy_opens_a_private_network_of_the_host() {
    let arena = Arena::start("14 Private networks behind the host").await;
    let private = Internet::at(0x0adf_0000);
    let address = private.far.to_string();
    for who in Who::BOTH {
        for allow in ["0.0.0.0/0", "10.0.0.0/8", &address] {
            let policy =
                NetworkPolicy { allow_out: vec![allow.parse().expect("a network")], ..NetworkPolicy::default() };
            arena.platform.node.set_network(&arena.attacker.incarnation, policy).await.expect("it can be changed");
            let reached = reached(&arena.attacker, who, std::slice::from_ref(&address)).await;
            assert!(reached.is_empty(), "{allow} as {}: {reached:?}", who.name());
            arena.table.held(format!("allow {}", if allow == address { "its address" } else { allow }), who, "dropped");
        }
    }
    drop(private);
    arena.finish().await;
}

/// One address as programs let people write it. All of them dial the same.
fn spellings(address: Ipv4Addr) -> Vec<String> {
    let bits = address.to_bits();
    let [a, b, c, d] = address.octets();
    vec![
        address.to_string(),
        format!("{bits}"),
        format!("{bits:#x}"),
        format!("{bits:#o}").replace("0o", "0"),
        format!("{a}.{}", bits & 0xff_ffff),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("::ffff:{address}"),
        format!("::ffff:{:x}:{:x}", bits >> 16, bits & 0xffff),
    ]
}

/// Dials all of them at once.
async fn reached(sandbox: &TestSandbox, who: Who, spellings: &[String]) -> Vec<String> {
    const DIAL: &str = r#"
import socket, sys, threading
def dial(spelling):
    try:
        if socket.create_connection((spelling, 7000), 2).recv(1):
            print(spelling, flush=True)
    except OSError:
        pass
threads = [threading.Thread(target=dial, args=(spelling,)) for spelling in sys.argv[1:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"#;
    let dial = format!("python3 -c '{DIAL}' {}", spellings.join(" "));
    let printed = sandbox.sh_as(who.name(), &dial).await.ok();
    printed.lines().map(str::to_owned).collect()
}

/// A namespace behind a veth pair, with an address that is nobody's: 198.18.0.0/15 is kept for tests.
struct Internet {
    name: String,
    near: Ipv4Addr,
    far: Ipv4Addr,
    server: std::process::Child,
}

impl Internet {
    fn start() -> Self {
        Self::at(0xc612_0000)
    }

    /// Somewhere in the 65,536 addresses from there on.
    fn at(network: u32) -> Self {
        let id = std::process::id();
        let name = format!("esc{id:x}{:x}", network >> 24);
        let base = network + (id % 0x3fff) * 4;
        let (near, far) = (Ipv4Addr::from_bits(base + 1), Ipv4Addr::from_bits(base + 2));
        run("ip", &format!("netns add {name}"));
        run("ip", &format!("link add {name} type veth peer name far netns {name}"));
        run("ip", &format!("addr add {near}/30 dev {name}"));
        run("ip", &format!("link set {name} up"));
        run("ip", &format!("-n {name} addr add {far}/30 dev far"));
        run("ip", &format!("-n {name} link set far up"));
        run("ip", &format!("-n {name} link set lo up"));
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/forwarding"), "1").expect("it is ours");
        let code = "import socket\ns = socket.create_server((\"0.0.0.0\", 7000), backlog=64)\nwhile True:\n c = s.accept()[0]; c.send(b\"x\"); c.close()";
        // Not by `ip netns exec`, which would keep a copy of the host's mounts.
        let namespace = format!("--net=/run/netns/{name}");
        let server = Command::new("nsenter").args([&namespace, "python3", "-c", code]).spawn().expect("it starts");
        let internet = Self { name, near, far, server };
        internet.wait();
        internet
    }

    fn wait(&self) {
        for _ in 0..200 {
            let address = SocketAddr::from((self.far, 7000));
            if TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the test's own internet does not answer");
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        run("ip", &format!("link del {}", self.name));
        run("ip", &format!("netns del {}", self.name));
    }
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("it is installed");
    assert!(output.status.success() || std::thread::panicking(), "{program} {arguments}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
