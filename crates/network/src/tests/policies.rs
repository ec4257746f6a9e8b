//! A sandbox's own policy, for new and open connections, and DNS.

use isopod_wire::Cidr;

use super::*;

const DNS: u16 = 53;

#[test]
fn allow_wins_over_deny_and_over_no_internet() {
    on_a_host(|world| {
        let private_networks = vec!["10.9.0.0/16".parse().unwrap()];
        let (network, sandboxes) = with_sandboxes(NetworkConfig { private_networks, ..config() }, 2);
        let _listener = world.serve_tcp(WEB);
        let targets = [("one", INTERNET, WEB), ("other", ELSEWHERE, WEB), ("private", PRIVATE, WEB)];
        let cases: [(NetworkPolicy, &[&str]); 7] = [
            (policy(true, &[], &[]), &[]),
            (policy(true, &["198.51.100.7"], &[]), &["one"]),
            (policy(false, &[], &["198.51.100.7"]), &["other"]),
            (policy(false, &["198.51.100.7"], &["0.0.0.0/0"]), &["one"]),
            (policy(false, &[], &["198.51.100.0/24", "198.51.100.8/32"]), &[]),
            (policy(false, &["10.9.0.0/16"], &[]), &["one", "other", "private"]),
            (policy(false, &[], &[]), &["one", "other"]),
        ];
        for (policy, expected) in cases {
            network.set_policy(Slot(0), &policy).unwrap();
            assert_eq!(reached(&sandboxes[0], &targets), expected, "{policy:?}");
            assert!(reaches(&sandboxes[1], INTERNET, WEB), "a neighbour's policy changed");
        }
        assert!(network.policy_slots().is_empty());
        network.close().unwrap();
    });
}

#[test]
fn a_policy_does_not_open_private_networks_that_the_operator_keeps_closed() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let (_listener, _lan) = (world.serve_tcp(WEB), within(&world.lan, || TcpListener::bind((LAN, WEB)).unwrap()));
        let targets = [("internet", INTERNET, WEB), ("private", PRIVATE, WEB), ("lan", LAN, WEB)];
        for allow in [
            &["0.0.0.0/0"][..],
            &["10.0.0.0/8", "172.16.0.0/12"],
            &["10.9.9.9", "172.30.0.2"],
            &["0.0.0.0/1", "128.0.0.0/1"],
        ] {
            network.set_policy(Slot(0), &policy(false, allow, &[])).unwrap();
            assert_eq!(reached(&sandboxes[0], &targets), ["internet"], "{allow:?}");
        }
        // Nor does it make the host forward packets from there.
        assert!(!sysctl::is_on(&sysctl::forwarding("lan0")).unwrap());
        network.close().unwrap();
    });
}

#[test]
fn a_private_network_that_is_no_longer_allowed_is_cut_off() {
    on_a_host(|world| {
        let private_networks = vec!["10.9.0.0/16".parse().unwrap()];
        let (network, sandboxes) = with_sandboxes(NetworkConfig { private_networks, ..config() }, 1);
        let listener = world.serve_tcp(WEB);
        network.set_policy(Slot(0), &policy(false, &["10.9.9.9"], &[])).unwrap();
        let mut near = dial(&sandboxes[0], PRIVATE, WEB).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        assert!(passes_in_time(&mut near, &mut far));
        network.set_policy(Slot(0), &policy(false, &[], &["192.0.2.1"])).unwrap();
        assert!(!passes(&mut near, &mut far), "the sandbox still sends");
        network.close().unwrap();
    });
}

#[test]
fn a_new_policy_cuts_open_connections_in_both_directions() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let listener = world.serve_tcp(WEB);
        let mut near = dial(&sandboxes[0], INTERNET, WEB).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for denying in [policy(false, &[], &["198.51.100.0/24"]), policy(true, &[], &[])] {
            assert!(passes_in_time(&mut near, &mut far) && passes_in_time(&mut far, &mut near));
            network.set_policy(Slot(0), &denying).unwrap();
            assert!(!passes(&mut near, &mut far), "the sandbox still sends");
            assert!(!passes(&mut far, &mut near), "the sandbox still receives");
            network.clear_policy(Slot(0)).unwrap();
            // The data that was held back arrives when the kernel retransmits it.
            for stream in [&mut near, &mut far] {
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.read_exact(&mut [0; 1]).unwrap();
            }
        }
        network.close().unwrap();
    });
}

#[test]
fn a_datagram_flow_is_cut_in_both_directions() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let far = world.serve_udp(ECHO);
        let near = within(&sandboxes[0], || udp(0));
        let sender = arrives_in_time(&near, INTERNET, &far);
        let answers = || far.send_to(b"y", sender).is_ok() && near.recv(&mut [0; 4]).is_ok();
        assert!(answers());
        network.set_policy(Slot(0), &policy(false, &[], &["198.51.100.7"])).unwrap();
        assert!(arrives(&near, INTERNET, &far).is_none() && !answers());
        network.close().unwrap();
    });
}

#[test]
fn names_are_resolved_unless_the_internet_is_denied() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let (server, _tcp, _web) = (world.serve_udp(DNS), world.serve_tcp(DNS), world.serve_tcp(WEB));
        let client = within(&sandboxes[0], || udp(0));
        let resolves = || arrives(&client, PRIVATE, &server).is_some();
        let targets = [("dns", PRIVATE, DNS), ("web", PRIVATE, WEB)];
        arrives_in_time(&client, PRIVATE, &server);
        assert_eq!(reached(&sandboxes[0], &targets), ["dns"]);
        // A sandbox must not tunnel through the DNS server if it has no internet, or if everything is denied.
        for denied in [policy(true, &[], &[]), policy(true, &["198.51.100.7"], &[]), policy(false, &[], &["0.0.0.0/0"])]
        {
            network.set_policy(Slot(0), &denied).unwrap();
            assert!(!resolves(), "{denied:?}");
            assert!(reached(&sandboxes[0], &targets).is_empty(), "{denied:?}");
        }
        network.set_policy(Slot(0), &policy(true, &["10.9.9.9"], &[])).unwrap();
        arrives_in_time(&client, PRIVATE, &server);
        network.close().unwrap();
    });
}

#[test]
fn a_resolver_at_the_metadata_address_opens_nothing_but_dns() {
    on_a_host(|world| {
        let resolvers = Resolvers::new([METADATA]);
        let (network, sandboxes) = with_sandboxes(NetworkConfig { resolvers, ..config() }, 1);
        let (server, _web, _dns) = (world.serve_udp(DNS), world.serve_tcp(WEB), world.serve_tcp(DNS));
        let client = within(&sandboxes[0], || udp(0));
        arrives_in_time(&client, METADATA, &server);
        network.set_policy(Slot(0), &policy(false, &["0.0.0.0/0"], &[])).unwrap();
        let targets = [("dns", METADATA, DNS), ("web", METADATA, WEB), ("private dns", PRIVATE, DNS)];
        assert_eq!(reached(&sandboxes[0], &targets), ["dns"]);
        network.close().unwrap();
    });
}

#[test]
fn thousands_of_networks_fit_into_a_policy() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        let _listener = world.serve_tcp(WEB);
        let scattered = (0..20_000u32).map(|n| Cidr::new(Ipv4Addr::from_bits(0x0b00_0000 + n * 2), 32));
        let deny_out: Vec<_> = scattered.chain(["198.51.100.7".parse().unwrap()]).collect();
        let policy = NetworkPolicy { deny_out, ..NetworkPolicy::default() };
        let start = std::time::Instant::now();
        network.set_policy(Slot(0), &policy).unwrap();
        eprintln!("a policy of 20,001 networks: {:?}", start.elapsed());
        assert_eq!(reached(&sandboxes[0], &[("one", INTERNET, WEB), ("other", ELSEWHERE, WEB)]), ["other"]);
        network.close().unwrap();
    });
}
