//! What applies to every sandbox: which hosts it reaches and which it never does.

use super::*;

#[test]
fn a_sandbox_reaches_the_internet_with_the_hosts_address() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        let listener = world.serve_tcp(WEB);
        let mut near = dial(&sandboxes[0], INTERNET, WEB).unwrap();
        let (mut far, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), HOST);
        assert!(passes_in_time(&mut near, &mut far) && passes_in_time(&mut far, &mut near));
        let server = world.serve_udp(ECHO);
        let sender = within(&sandboxes[1], || udp(0));
        assert_eq!(*arrives_in_time(&sender, INTERNET, &server).ip(), HOST);
        assert_eq!(ip("-o link show iab12-0").split("mtu ").nth(1).unwrap().split(' ').next(), Some("1400"));
        assert!(within(&sandboxes[0], || pings(INTERNET)));
        network.close().unwrap();
    });
}

/// Sends an echo request through a kind of socket that needs no privilege except the namespace's `ping_group_range`.
fn pings(to: Ipv4Addr) -> bool {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP)).unwrap();
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(WAIT)).unwrap();
    let request = [8, 0, 0, 0, 0, 0, 0, 1];
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrV4::new(to, 0)).unwrap();
    rustix::net::recv(&socket, &mut [0u8; 64][..], RecvFlags::empty()).is_ok()
}

#[test]
fn the_host_the_neighbours_and_private_networks_are_out_of_reach() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        let _internet = world.serve_tcp(WEB);
        let _host = TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap();
        let _neighbour = within(&sandboxes[1], || TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap());
        let _lan = within(&world.lan, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap());
        let targets = [
            ("the internet", INTERNET, WEB),
            ("the gateway", GATEWAY, WEB),
            ("the host", HOST, WEB),
            ("the host beside the lan", Ipv4Addr::new(172, 30, 0, 1), WEB),
            ("a neighbour", network.address(Slot(1)).unwrap(), WEB),
            ("the metadata service", METADATA, WEB),
            ("a private network", PRIVATE, WEB),
            ("the lan", LAN, WEB),
        ];
        for (name, to, port) in targets.iter().filter(|target| target.0 != "a neighbour") {
            let address = SocketAddrV4::new(*to, *port).into();
            assert!(TcpStream::connect_timeout(&address, WAIT).is_ok(), "the host itself does not reach {name}");
        }
        assert_eq!(reached(&sandboxes[0], &targets), ["the internet"]);
        // Allowing everything opens neither private networks nor the addresses that are closed to all.
        let everything = policy(false, &["0.0.0.0/0"], &[]);
        network.set_policy(Slot(0), &everything).unwrap();
        assert_eq!(reached(&sandboxes[0], &targets), ["the internet"]);
        drop(network);
        // If the operator opened the private networks, a policy can allow them.
        let network = Network::open(with_private_networks()).unwrap();
        network.set_policy(Slot(0), &everything).unwrap();
        assert_eq!(reached(&sandboxes[0], &targets), ["the internet", "a private network", "the lan"]);
        network.clear_policy(Slot(0)).unwrap();
        assert_eq!(reached(&sandboxes[0], &targets), ["the internet"]);
        network.close().unwrap();
    });
}

#[test]
fn nobody_outside_reaches_a_sandbox() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let inside = within(&sandboxes[0], || udp(ECHO));
        let _tcp = within(&sandboxes[0], || TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap());
        let address = network.address(Slot(0)).unwrap();
        for _ in 0..2 {
            assert_eq!(arrives(&within(&world.internet, || udp(0)), address, &inside), None);
            assert!(!reaches(&world.internet, address, WEB));
            assert!(!reaches(&world.lan, address, WEB));
            // A sandbox's replies to the host itself are dropped too.
            assert!(TcpStream::connect_timeout(&SocketAddrV4::new(address, WEB).into(), WAIT).is_err());
            network.set_policy(Slot(0), &policy(false, &["0.0.0.0/0"], &[])).unwrap();
        }
        network.close().unwrap();
    });
}

#[test]
fn broadcasts_and_multicasts_of_a_sandbox_go_nowhere() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        network.set_policy(Slot(0), &policy(false, &["0.0.0.0/0"], &[])).unwrap();
        let (host, far) = (udp(ECHO), world.serve_udp(ECHO));
        let sender = within(&sandboxes[0], || udp(0));
        for to in ["255.255.255.255", "203.0.113.255", "224.0.0.1", "239.1.2.3", "0.0.0.1"] {
            let to = to.parse().unwrap();
            assert_eq!(arrives(&sender, to, &host), None, "{to} reached the host");
            assert_eq!(arrives(&sender, to, &far), None, "{to} reached the internet");
        }
        arrives_in_time(&sender, INTERNET, &far);
        network.close().unwrap();
    });
}

#[test]
fn a_forged_sender_is_dropped() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        let server = world.serve_udp(ECHO);
        let send_as = |address: Ipv4Addr| {
            let socket = within(&sandboxes[0], || {
                ip(&format!("addr replace {address}/32 dev eth0"));
                UdpSocket::bind((address, 0)).unwrap()
            });
            arrives(&socket, INTERNET, &server)
        };
        assert!(send_as(network.address(Slot(0)).unwrap()).is_some());
        let forged =
            [network.address(Slot(1)).unwrap(), Ipv4Addr::new(10, 200, 9, 9), Ipv4Addr::new(192, 0, 2, 77), HOST];
        for address in forged {
            assert_eq!(send_as(address), None, "{address} got through");
        }
        network.close().unwrap();
    });
}

#[test]
fn there_is_no_ipv6_but_a_loopback() {
    on_a_host(|_| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        assert_eq!(ip("-6 -o addr show dev iab12-0"), "");
        within(&sandboxes[0], || {
            assert_eq!(ip("-6 -o addr show dev eth0"), "");
            assert_eq!(ip("-6 route show dev eth0"), "");
            TcpListener::bind("[::1]:0").unwrap();
            TcpListener::bind("127.0.0.1:80").unwrap();
        });
        // Root in a sandbox cannot re-enable IPv6. Even if something else did, the host would drop the packets.
        within(&sandboxes[0], || sysctl::write("ipv6/conf/eth0/disable_ipv6", "0").unwrap());
        sysctl::write("ipv6/conf/iab12-0/disable_ipv6", "0").unwrap();
        ip("-6 addr add fd00:1::1/64 dev iab12-0 nodad");
        let host = UdpSocket::bind("[::]:7000").unwrap();
        host.set_read_timeout(Some(WAIT)).unwrap();
        within(&sandboxes[0], || {
            ip("-6 addr add fd00:1::2/64 dev eth0 nodad");
            let sender = UdpSocket::bind("[::]:0").unwrap();
            sender.send_to(b"x", "[fd00:1::1]:7000").unwrap();
        });
        assert!(host.recv(&mut [0; 4]).is_err());
        network.close().unwrap();
    });
}

#[test]
fn the_host_becomes_no_router_for_others() {
    on_a_host(|world| {
        let lan = within(&world.lan, || udp(ECHO));
        let outsider = within(&world.internet, || udp(0));
        assert_eq!(arrives(&outsider, LAN, &lan), None);
        let network = Network::open(config()).unwrap();
        assert!(sysctl::is_on("ipv4/conf/up0/forwarding").unwrap());
        assert!(!sysctl::is_on("ipv4/conf/lan0/forwarding").unwrap());
        assert_eq!(arrives(&outsider, LAN, &lan), None);
        // The host's owner can make it a router, and it then stays one.
        sysctl::write("ipv4/conf/all/forwarding", "1").unwrap();
        network.refresh().unwrap();
        arrives_in_time(&outsider, LAN, &lan);
        network.close().unwrap();
        assert!(sysctl::is_on("ipv4/conf/up0/forwarding").unwrap());
    });
}

#[test]
fn only_so_many_connections_at_once() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(NetworkConfig { max_connections: 5, ..config() }, 2);
        let _listener = world.serve_tcp(WEB);
        let held: Vec<_> = (0..8).filter_map(|_| dial(&sandboxes[0], INTERNET, WEB).ok()).collect();
        assert_eq!(held.len(), 5);
        assert!(reaches(&sandboxes[1], INTERNET, WEB), "a neighbour pays for it");
        network.close().unwrap();
    });
}

#[test]
fn a_port_that_the_host_redirects_is_out_of_reach() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(with_private_networks(), 1);
        let _lan = within(&world.lan, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap());
        run("nft", "add table ip redirected");
        run("nft", "add chain ip redirected pre { type nat hook prerouting priority -100 ; }");
        run("nft", "add rule ip redirected pre tcp dport 8080 dnat to 172.30.0.2:80");
        network.set_policy(Slot(0), &policy(false, &["0.0.0.0/0"], &[])).unwrap();
        let targets = [("directly", LAN, WEB), ("redirected", HOST, 8080), ("elsewhere redirected", INTERNET, 8080)];
        assert_eq!(reached(&sandboxes[0], &targets), ["directly"]);
        network.close().unwrap();
    });
}
