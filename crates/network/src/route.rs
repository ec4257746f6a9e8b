//! The rtnetlink messages for a routed veth pair, and the lists of links, addresses and routes. This module only
//! encodes and decodes. Callers decide what to send and when.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use isopod_wire::Cidr;

use super::netlink::{ACK, Attributes, Batch, CREATE, EXCL, NetlinkError, Socket, attribute, text, u16_at, u32_at};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_STATS64: u16 = 23;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INET_CONF: u16 = 1;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
const OPERSTATE_UP: u8 = 6;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
/// The length of `struct rtnexthop`: length, flags, hops, interface.
const NEXT_HOP_HEADER: usize = 8;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const ROUTE_UNICAST: u8 = 1;

const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

/// The loopback interface is always the first one of a network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// The scope of an address or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Universe = 0,
    /// Only directly attached hosts.
    Link = 253,
}

/// A per-interface IPv4 setting (`net.ipv4.conf.*`) that can be set together with the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ipv4Setting {
    Forwarding = 1,
    ProxyArp = 3,
    AcceptRedirects = 4,
    SendRedirects = 6,
    RpFilter = 8,
    AcceptSourceRoute = 9,
    ArpIgnore = 19,
    AcceptLocal = 23,
    RouteLocalnet = 26,
}

/// An interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
}

/// A route of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) destination: Cidr,
    /// The interfaces that it uses: several for a multipath route, none for an unreachable one.
    pub(super) interfaces: Vec<u32>,
    pub(super) table: u32,
    pub(super) is_unicast: bool,
}

/// Creates a veth pair: one end here, the other one as `peer` directly inside `netns`. Both ends are down.
pub(super) fn add_veth(batch: &mut Batch, name: &str, peer: &str, netns: BorrowedFd<'_>, mtu: u32) {
    let netns = netns.as_raw_fd().cast_unsigned();
    batch.push("make a veth pair", RTM_NEWLINK, ACK | CREATE | EXCL, &link_header(0, 0), |link| {
        link.text(IFLA_IFNAME, name);
        link.native_u32(IFLA_MTU, mtu);
        link.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest_with_header(VETH_INFO_PEER, &link_header(0, 0), |other| {
                    other.text(IFLA_IFNAME, peer);
                    other.native_u32(IFLA_MTU, mtu);
                    other.native_u32(IFLA_NET_NS_FD, netns);
                });
            });
        });
    });
}

/// Requests a veth pair that no kernel can create, because a name contains a slash.
pub(super) fn add_impossible_veth(batch: &mut Batch) {
    batch.push("make veth pairs", RTM_NEWLINK, ACK | CREATE | EXCL, &link_header(0, 0), |link| {
        link.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest_with_header(VETH_INFO_PEER, &link_header(0, 0), |other| other.text(IFLA_IFNAME, "a/b"));
            });
        });
    });
}

/// Moves the named interface into a group.
pub(super) fn set_group(batch: &mut Batch, name: &str, group: u32) {
    batch.push("mark an interface for removal", RTM_SETLINK, ACK, &link_header(0, 0), |link| {
        link.text(IFLA_IFNAME, name);
        link.native_u32(IFLA_GROUP, group);
    });
}

/// Removes the interfaces of a group, and with each the other end of its pair. The kernel waits for all of them
/// together, which takes about as long as for a single one.
pub(super) fn delete_group(batch: &mut Batch, group: u32) {
    batch.push("remove interfaces", RTM_DELLINK, ACK, &link_header(0, 0), |link| link.native_u32(IFLA_GROUP, group));
}

/// Brings the interface up, with these IPv4 settings in effect before the first packet.
pub(super) fn set_up(batch: &mut Batch, index: u32, settings: &[(Ipv4Setting, u32)]) {
    batch.push("take an interface up", RTM_SETLINK, ACK, &link_header(index, IFF_UP), |link| {
        if !settings.is_empty() {
            link.nest(IFLA_AF_SPEC, |families| {
                families.nest(u16::from(AF_INET), |inet| inet.nest(IFLA_INET_CONF, |conf| put_settings(conf, settings)))
            });
        }
    });
}

fn put_settings(conf: &mut Attributes<'_>, settings: &[(Ipv4Setting, u32)]) {
    for (setting, value) in settings {
        conf.native_u32(*setting as u16, *value);
    }
}

/// Adds a single address to the interface, without a subnet.
pub(super) fn add_address(batch: &mut Batch, index: u32, address: Ipv4Addr, scope: Scope) {
    let mut header = vec![AF_INET, 32, 0, scope as u8];
    header.extend_from_slice(&index.to_ne_bytes());
    batch.push("add an address", RTM_NEWADDR, ACK | CREATE | EXCL, &header, |attributes| {
        attributes.bytes(IFA_LOCAL, &address.octets());
        attributes.bytes(IFA_ADDRESS, &address.octets());
    });
}

/// Adds a route to `destination` on the interface, through `gateway` if there is one.
pub(super) fn add_route(batch: &mut Batch, index: u32, destination: Cidr, gateway: Option<Ipv4Addr>) {
    let scope = if gateway.is_some() { Scope::Universe } else { Scope::Link };
    let header =
        [AF_INET, destination.prefix(), 0, 0, TABLE_MAIN, PROTOCOL_STATIC, scope as u8, ROUTE_UNICAST, 0, 0, 0, 0];
    batch.push("add a route", RTM_NEWROUTE, ACK | CREATE | EXCL, &header, |attributes| {
        attributes.bytes(RTA_DST, &destination.first().octets());
        attributes.native_u32(RTA_OIF, index);
        if let Some(gateway) = gateway {
            attributes.bytes(RTA_GATEWAY, &gateway.octets());
        }
    });
}

/// Whether the interface can send packets. The query makes the kernel (since 6.8) notice a carrier that has just come
/// up, which it otherwise does at some later time.
pub(super) fn is_operational(socket: &mut Socket, index: u32) -> Result<bool, NetlinkError> {
    let state = |kind, payload: &[u8]| {
        let state = attribute(payload.get(LINK_HEADER..)?, IFLA_OPERSTATE)?;
        (kind == RTM_NEWLINK).then_some(state == [OPERSTATE_UP])
    };
    let found = socket.get("read the state of an interface", RTM_GETLINK, &link_header(index, 0), state)?;
    Ok(found.unwrap_or(false))
}

/// All interfaces.
pub(super) fn links(socket: &mut Socket) -> Result<Vec<Link>, NetlinkError> {
    socket.dump("list interfaces", RTM_GETLINK, &link_header(0, 0), |_| {}, parse_link)
}

/// For each interface, whether it ever handled a packet, even if it only refused it.
pub(super) fn traffic(socket: &mut Socket) -> Result<Vec<bool>, NetlinkError> {
    let seen = |kind, payload: &[u8]| {
        let counters = attribute(payload.get(LINK_HEADER..)?, IFLA_STATS64)?;
        (kind == RTM_NEWLINK).then(|| counters.iter().any(|byte| *byte != 0))
    };
    socket.dump("read the counters of interfaces", RTM_GETLINK, &link_header(0, 0), |_| {}, seen)
}

/// All IPv4 addresses of this host.
pub(super) fn addresses(socket: &mut Socket) -> Result<Vec<Ipv4Addr>, NetlinkError> {
    let header = [AF_INET, 0, 0, 0, 0, 0, 0, 0];
    socket.dump("list addresses", RTM_GETADDR, &header, |_| {}, parse_own_address)
}

/// All IPv4 routes of all tables.
pub(super) fn routes(socket: &mut Socket) -> Result<Vec<Route>, NetlinkError> {
    let mut header = [0; ROUTE_HEADER];
    header[0] = AF_INET;
    socket.dump("list routes", RTM_GETROUTE, &header, |_| {}, parse_route)
}

impl Route {
    /// Whether the normal route lookup uses it.
    pub(super) fn is_in_main_table(&self) -> bool {
        self.table == u32::from(TABLE_MAIN)
    }
}

fn link_header(index: u32, flags: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[0] = AF_UNSPEC;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn parse_link(kind: u16, payload: &[u8]) -> Option<Link> {
    if kind != RTM_NEWLINK {
        return None;
    }
    let index = u32_at(payload, 4)?;
    let rest = payload.get(LINK_HEADER..)?;
    let name = text(attribute(rest, IFLA_IFNAME)?).to_owned();
    let mtu = attribute(rest, IFLA_MTU).and_then(|value| u32_at(value, 0)).unwrap_or_default();
    Some(Link { index, name, mtu })
}

fn parse_own_address(kind: u16, payload: &[u8]) -> Option<Ipv4Addr> {
    if kind != RTM_NEWADDR {
        return None;
    }
    parse_address(attribute(payload.get(ADDRESS_HEADER..)?, IFA_LOCAL)?)
}

fn parse_address(value: &[u8]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?))
}

fn parse_route(message: u16, payload: &[u8]) -> Option<Route> {
    let (family, prefix, table, kind) = (*payload.first()?, *payload.get(1)?, *payload.get(4)?, *payload.get(7)?);
    if message != RTM_NEWROUTE || family != AF_INET || prefix > 32 {
        return None;
    }
    let rest = payload.get(ROUTE_HEADER..)?;
    let destination = attribute(rest, RTA_DST).and_then(parse_address).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let one = attribute(rest, RTA_OIF).and_then(|value| u32_at(value, 0));
    let many = attribute(rest, RTA_MULTIPATH).map(next_hops).unwrap_or_default();
    Some(Route {
        destination: Cidr::new(destination, prefix),
        interfaces: one.into_iter().chain(many).collect(),
        table: attribute(rest, RTA_TABLE).and_then(|value| u32_at(value, 0)).unwrap_or(u32::from(table)),
        is_unicast: kind == ROUTE_UNICAST,
    })
}

/// The interfaces of a multipath route.
fn next_hops(bytes: &[u8]) -> Vec<u32> {
    let mut interfaces = Vec::new();
    let mut rest = bytes;
    while let (Some(length), Some(interface)) = (u16_at(rest, 0), u32_at(rest, 4)) {
        let length = usize::from(length);
        if length < NEXT_HOP_HEADER {
            break;
        }
        interfaces.push(interface);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attributes;
    use super::*;

    #[test]
    fn a_host_route_is_encoded_as_the_kernel_wants_it() {
        let mut batch = Batch::default();
        add_route(&mut batch, 7, "10.200.0.2".parse().unwrap(), None);
        let expected: &[u8] =
            &[2, 32, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 200, 0, 2, 8, 0, 4, 0, 7, 0, 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(&batch.bytes()[16..], expected);
        }
        let route = parse_route(RTM_NEWROUTE, &batch.bytes()[16..]).unwrap();
        assert_eq!((route.destination.to_string().as_str(), route.interfaces), ("10.200.0.2/32", vec![7]));
    }

    #[test]
    fn a_multipath_route_names_each_interface() {
        let mut hops = Vec::new();
        for interface in [3u32, 9] {
            hops.extend_from_slice(&8u16.to_ne_bytes());
            hops.extend_from_slice(&[0, 0]);
            hops.extend_from_slice(&interface.to_ne_bytes());
        }
        assert_eq!(next_hops(&hops), [3, 9]);
        assert!(next_hops(&[0; 16]).is_empty());
        assert_eq!(next_hops(&[255; 9]).len(), 1);
    }

    #[test]
    fn settings_travel_with_the_link() {
        let mut batch = Batch::default();
        set_up(&mut batch, 5, &[(Ipv4Setting::Forwarding, 1), (Ipv4Setting::RpFilter, 1)]);
        let rest = &batch.bytes()[16 + LINK_HEADER..];
        let inet = attribute(attribute(rest, IFLA_AF_SPEC).unwrap(), 2).unwrap();
        let conf: Vec<_> = attributes(attribute(inet, IFLA_INET_CONF).unwrap()).map(|(kind, _)| kind).collect();
        assert_eq!(conf, [1, 8]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_harm(bytes: Vec<u8>) {
            let _ = parse_link(RTM_NEWLINK, &bytes);
            let _ = parse_own_address(RTM_NEWADDR, &bytes);
            let _ = parse_route(RTM_NEWROUTE, &bytes);
            let _ = next_hops(&bytes);
        }
    }
}
