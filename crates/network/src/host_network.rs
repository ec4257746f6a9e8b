//! The host's own network: its routes and interfaces, without those of slots. The slots of other nodes are left out
//! too: slots are claimed host-wide, so several nodes share one pool without collisions. Answers whether the address
//! pool is free, and which interfaces lead out.

use isopod_wire::Cidr;

use super::names::is_node_interface;
use super::netlink::{NetlinkError, Socket};
use super::nft::Range;
use super::route::{self, LOOPBACK, Link, Route};

/// A route with this prefix or a shorter one is in effect a default route. VPN clients add such routes (`0.0.0.0/1`).
const MAX_DEFAULT_PREFIX: u8 = 7;

/// A snapshot of the host's network.
#[derive(Debug, Default)]
pub(super) struct HostNetwork {
    routes: Vec<Route>,
    links: Vec<Link>,
}

/// A route of the host that leads to addresses of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) destination: Cidr,
    pub(super) interface: String,
}

impl HostNetwork {
    pub(super) fn read(socket: &mut Socket) -> Result<Self, NetlinkError> {
        // Interfaces are listed last. If a slot comes up in between, its interface is known, and its route is left out.
        let routes = route::routes(socket)?;
        Ok(Self::without_slots(routes, route::links(socket)?))
    }

    fn without_slots(mut routes: Vec<Route>, links: Vec<Link>) -> Self {
        let (ours, links): (Vec<_>, Vec<_>) = links.into_iter().partition(|link| is_node_interface(&link.name));
        let ours: std::collections::HashSet<u32> = ours.into_iter().map(|link| link.index).collect();
        // A slot may be removed between the two listings. Then its route is listed, but its interface is not.
        let is_known = |index: &u32| links.iter().any(|link| link.index == *index);
        routes.retain(|route| {
            !route.interfaces.iter().any(|index| ours.contains(index))
                && (route.interfaces.is_empty() || route.interfaces.iter().any(is_known))
        });
        Self { routes, links }
    }

    /// The first route, other than a default route, that shares addresses with the pool.
    pub(super) fn find_overlap(&self, pool: Cidr) -> Option<Overlap> {
        let is_in_the_way =
            |route: &&Route| route.destination.prefix() > MAX_DEFAULT_PREFIX && overlaps(route.destination, pool);
        let route = self.routes.iter().find(is_in_the_way)?;
        let link = self.links.iter().find(|link| route.interfaces.contains(&link.index));
        let interface = link.map_or_else(|| "no interface".to_owned(), |link| link.name.clone());
        Some(Overlap { destination: route.destination, interface })
    }

    /// Whether the host has a route to the internet.
    pub(super) fn has_default_route(&self) -> bool {
        self.ways().any(|route| route.destination == Cidr::ALL)
    }

    /// The interfaces of the default routes, and of narrower routes to one of the targets.
    pub(super) fn find_uplinks(&self, targets: &[Range]) -> Vec<Link> {
        let is_on_the_way = |destination: Cidr| {
            move |(first, last): &Range| *first <= destination.last() && destination.first() <= *last
        };
        let leads_out = |destination: Cidr| destination.prefix() == 0 || targets.iter().any(is_on_the_way(destination));
        let indexes: Vec<u32> = self
            .ways()
            .filter(|route| leads_out(route.destination))
            .flat_map(|route| route.interfaces.iter().copied())
            .filter(|index| *index != LOOPBACK)
            .collect();
        self.links.iter().filter(|link| indexes.contains(&link.index)).cloned().collect()
    }

    fn ways(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| route.is_unicast && route.is_in_main_table())
    }
}

/// Whether the networks share an address.
fn overlaps(one: Cidr, other: Cidr) -> bool {
    one.first() <= other.last() && other.first() <= one.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_network(routes: &[(&str, u32)]) -> HostNetwork {
        let link = |index, name: &str| Link { index, name: name.to_owned(), mtu: 1500 };
        let route = |(destination, interface): &(&str, u32)| Route {
            destination: destination.parse().unwrap(),
            interfaces: vec![*interface],
            table: 254,
            is_unicast: true,
        };
        let links = vec![link(1, "lo"), link(2, "eth0"), link(3, "iab12-0"), link(4, "icd34-0"), link(5, "vpn0")];
        HostNetwork::without_slots(routes.iter().map(route).collect(), links)
    }

    #[test]
    fn foreign_routes_into_the_pool_are_found() {
        let find = |routes: &[(&str, u32)]| {
            let overlap = host_network(routes).find_overlap("10.200.0.0/16".parse().unwrap());
            overlap.map(|overlap| overlap.interface)
        };
        assert_eq!(find(&[("0.0.0.0/0", 2), ("0.0.0.0/1", 2), ("10.201.0.0/16", 2)]), None);
        assert_eq!(find(&[("10.200.0.2/32", 3)]), None);
        assert_eq!(find(&[("10.200.0.2/32", 4)]), None, "another node's slot");
        assert_eq!(find(&[("10.0.0.0/8", 2)]).as_deref(), Some("eth0"));
        assert_eq!(find(&[("10.200.0.7/32", 9)]), None, "a slot that has just gone");
    }

    #[test]
    fn uplinks_are_where_the_internet_and_the_targets_are() {
        let here = host_network(&[("0.0.0.0/0", 2), ("127.0.0.0/8", 1), ("10.200.0.2/32", 3), ("10.8.0.0/16", 5)]);
        let find = |targets: &[&str]| {
            let targets: Vec<Cidr> = targets.iter().map(|text| text.parse().unwrap()).collect();
            let targets: Vec<Range> = targets.iter().map(|target| (target.first(), target.last())).collect();
            here.find_uplinks(&targets).into_iter().map(|link| link.name).collect::<Vec<_>>()
        };
        assert_eq!(find(&[]), ["eth0"]);
        assert_eq!(find(&["10.8.3.0/24"]), ["eth0", "vpn0"]);
        assert_eq!(find(&["0.0.0.0/0"]), ["eth0", "vpn0"]);
        assert!(here.has_default_route() && !host_network(&[]).has_default_route());
    }
}
