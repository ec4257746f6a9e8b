//! Start and end: taking over, sweeping, failing halfway, and leaving nothing behind.

use std::collections::BTreeSet;

use super::*;
use crate::flows;
use crate::netlink::Socket;
use crate::preflight::{Finding, preflight};

#[test]
fn nothing_is_left() {
    on_a_host(|_| {
        let before = leftovers();
        let (network, sandboxes) = with_sandboxes(config(), 3);
        network.set_policy(Slot(1), &policy(true, &["198.51.100.7"], &["192.0.2.0/24"])).unwrap();
        network.unplumb(Slot(1)).unwrap();
        network.unplumb(Slot(1)).unwrap();
        assert_eq!(network.plumbed_slots().unwrap(), [Slot(0), Slot(2)].into());
        assert!(!run("nft", "list ruleset").contains("s1"));
        assert_eq!(network.sweep(&[Slot(0)].into()).unwrap(), [Slot(2)].into());
        drop(sandboxes);
        network.unplumb(Slot(0)).unwrap();
        network.close().unwrap();
        assert_eq!(leftovers(), before);
        assert_eq!(before, "");
    });
}

#[test]
fn a_namespace_that_ends_takes_its_interface_along() {
    on_a_host(|_| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        drop(sandboxes);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while !network.plumbed_slots().unwrap().is_empty() {
            assert!(std::time::Instant::now() < end, "the interfaces stay");
            thread::yield_now();
        }
        network.close().unwrap();
    });
}

#[test]
fn a_new_process_takes_over_rules_and_policies() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        let _listener = world.serve_tcp(WEB);
        network.set_policy(Slot(0), &policy(true, &[], &[])).unwrap();
        drop(network);
        let network = Network::open(NetworkConfig { resolvers: Resolvers::default(), ..config() }).unwrap();
        assert_eq!(network.policy_slots(), [Slot(0)].into());
        assert!(!reaches(&sandboxes[0], INTERNET, WEB) && reaches(&sandboxes[1], INTERNET, WEB));
        let rules = run("nft", "list ruleset");
        assert_eq!(rules.matches("masquerade").count(), 1, "{rules}");
        assert!(!rules.contains("dport 53"), "{rules}");
        assert_eq!(network.sweep(&BTreeSet::new()).unwrap(), [Slot(0), Slot(1)].into());
        network.close().unwrap();
        assert_nothing_left();
    });
}

#[test]
fn the_next_sandbox_on_a_slot_starts_without_policy_and_connections() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 2);
        let (_listener, far) = (world.serve_tcp(WEB), world.serve_udp(ECHO));
        let near = within(&sandboxes[0], || udp(4000));
        let sender = arrives_in_time(&near, INTERNET, &far);
        far.send_to(b"soon", sender).unwrap();
        assert!(near.recv(&mut [0; 4]).is_ok());
        network.set_policy(Slot(0), &policy(false, &["198.51.100.7"], &[])).unwrap();
        let _other = dial(&sandboxes[1], INTERNET, WEB).unwrap();
        network.unplumb(Slot(0)).unwrap();
        let fresh = new_netns();
        network.plumb(Slot(0), fresh.as_fd()).unwrap();
        let heir = within(&fresh, || udp(4000));
        far.send_to(b"late", sender).unwrap();
        assert!(heir.recv(&mut [0; 4]).is_err(), "an answer to the old sandbox came to the new one");
        assert!(network.policy_slots().is_empty());
        let mut socket = Socket::open(Some(rustix::net::netlink::NETFILTER)).unwrap();
        let addresses: Vec<_> = (0..2).map(|slot| network.address(Slot(slot)).unwrap()).collect();
        assert_eq!(flows::forget(&mut socket, &[addresses[0]].into()).unwrap(), 0);
        assert_eq!(flows::forget(&mut socket, &addresses.into_iter().collect()).unwrap(), 1);
        network.close().unwrap();
    });
}

#[test]
fn a_failure_halfway_leaves_nothing() {
    on_a_host(|world| {
        let (network, sandboxes) = with_sandboxes(config(), 1);
        assert!(matches!(network.plumb(Slot(1), sandboxes[0].as_fd()), Err(NetworkError::Plumb { .. })));
        assert!(matches!(network.plumb(Slot(0), new_netns().as_fd()), Err(NetworkError::Plumb { .. })));
        let no_namespace = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(matches!(network.plumb(Slot(1), no_namespace.as_fd()), Err(NetworkError::Plumb { .. })));
        // The host already has a route to the next address, which is noticed only after the interface is created.
        ip("route add 10.200.0.3/32 dev lan0");
        assert!(matches!(network.plumb(Slot(1), new_netns().as_fd()), Err(NetworkError::Plumb { .. })));
        assert_eq!(network.plumbed_slots().unwrap(), [Slot(0)].into());
        assert!(matches!(network.plumb(Slot(70_000), new_netns().as_fd()), Err(NetworkError::PoolTooSmall { .. })));
        let _listener = world.serve_tcp(WEB);
        assert!(reaches(&sandboxes[0], INTERNET, WEB));
        network.close().unwrap();
    });
}

#[test]
fn a_pool_that_the_host_uses_is_refused() {
    on_a_host(|_| {
        let taken = NetworkConfig { pool: "203.0.113.128/25".parse().unwrap(), ..config() };
        assert!(preflight(&taken).iter().any(|finding| matches!(finding, Finding::PoolInUse { .. })));
        assert!(matches!(Network::open(taken), Err(NetworkError::PoolInUse { .. })));
        assert_nothing_left();
    });
}

#[test]
fn two_nodes_share_a_host() {
    on_a_host(|world| {
        let _listener = world.serve_tcp(WEB);
        let (first, one) = with_sandboxes(config(), 1);
        let tag = "cd34".parse().unwrap();
        // Slots are claimed host-wide, so a third node may use the same pool.
        let third = Network::open(NetworkConfig { tag: "ef56".parse().unwrap(), ..config() }).unwrap();
        assert!(reaches(&one[0], INTERNET, WEB));
        third.close().unwrap();
        let (second, other) =
            with_sandboxes(NetworkConfig { tag, pool: "10.201.0.0/16".parse().unwrap(), ..config() }, 1);
        let _neighbour = within(&other[0], || TcpListener::bind((Ipv4Addr::UNSPECIFIED, WEB)).unwrap());
        assert!(reaches(&one[0], INTERNET, WEB) && reaches(&other[0], INTERNET, WEB));
        assert!(!reaches(&one[0], second.address(Slot(0)).unwrap(), WEB));
        first.set_policy(Slot(0), &policy(false, &["10.201.0.0/16"], &[])).unwrap();
        assert!(!reaches(&one[0], second.address(Slot(0)).unwrap(), WEB));
        drop(one);
        first.close().unwrap();
        assert!(reaches(&other[0], INTERNET, WEB), "the second lost its way out");
        second.close().unwrap();
        assert_nothing_left();
    });
}

#[test]
fn a_look_at_the_host_changes_nothing() {
    on_a_host(|_| {
        let found = preflight(&config());
        assert!(matches!(found[..], [Finding::ForwardingOff]), "{found:?}");
        assert_nothing_left();
        let resolvers = Resolvers::new([HOST]);
        run("nft", "add table ip other");
        run("nft", "add chain ip other through { type filter hook forward priority 0 ; policy drop ; }");
        ip("route del default");
        let found = preflight(&NetworkConfig { resolvers, ..config() });
        assert!(found.iter().any(|f| matches!(f, Finding::ForwardDropped { table, .. } if table == "other")));
        assert!(found.iter().any(|f| matches!(f, Finding::ResolverIsHost(HOST))));
        assert!(found.iter().any(|f| matches!(f, Finding::NoDefaultRoute)));
        assert!(found.iter().all(|f| !f.is_fatal() && !f.hint().is_empty()), "{found:?}");
    });
}

#[test]
fn many_threads_at_once() {
    on_a_host(|world| {
        let network = Network::open(config()).unwrap();
        let _listener = world.serve_tcp(WEB);
        thread::scope(|scope| {
            for worker in 0..4 {
                let network = &network;
                scope.spawn(move || {
                    for round in 0..10 {
                        let (slot, netns) = (Slot(worker * 10 + round), new_netns());
                        network.plumb(slot, netns.as_fd()).unwrap();
                        network.set_policy(slot, &policy(true, &["198.51.100.7"], &[])).unwrap();
                        assert_eq!(reached(&netns, &[("it", INTERNET, WEB)]), ["it"]);
                        network.unplumb(slot).unwrap();
                    }
                });
            }
        });
        assert!(network.plumbed_slots().unwrap().is_empty() && network.policy_slots().is_empty());
        network.close().unwrap();
        assert_nothing_left();
    });
}
