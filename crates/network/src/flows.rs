//! Deletes the tracked connections of a slot that ends, so that late replies to the old sandbox never reach the next
//! sandbox with its address.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::netlink::{ACK, Attributes, Batch, NetlinkError, Socket, attribute};
use super::nft::FAMILY_IPV4;

const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_IP: u16 = 1;
const IP_SOURCE: u16 = 1;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const FILTER_BY_SOURCE: u32 = 1;
/// Small enough that the replies to one batch fit into a socket's receive buffer.
const DELETIONS_PER_BATCH: usize = 64;

/// Deletes every tracked connection that one of the addresses opened, and returns how many there were. The kernel walks
/// through all connections of the host for this, so handle many addresses in one call.
pub(super) fn forget(socket: &mut Socket, addresses: &BTreeSet<Ipv4Addr>) -> Result<usize, NetlinkError> {
    let fill = |request: &mut Attributes<'_>| {
        if let (Some(only), 1) = (addresses.first(), addresses.len()) {
            put_filter(request, *only);
        }
    };
    // Kernels before 5.8 do not filter, and the filter takes only one address. So every connection is checked here as
    // well.
    let tuple_of_ours = |kind, payload: &[u8]| {
        let tuple = attribute(payload.get(4..)?, TUPLE_ORIGINAL)?;
        (kind == NEW && addresses.contains(&source_of(tuple)?)).then(|| tuple.to_vec())
    };
    let tuples = socket.dump("list tracked connections", GET, &[FAMILY_IPV4, 0, 0, 0], fill, tuple_of_ours)?;
    for part in tuples.chunks(DELETIONS_PER_BATCH) {
        delete(socket, part)?;
    }
    Ok(tuples.len())
}

/// A connection that has ended by itself in the meantime counts as deleted.
fn delete(socket: &mut Socket, tuples: &[Vec<u8>]) -> Result<(), NetlinkError> {
    let mut batch = Batch::default();
    for tuple in tuples {
        batch.push("forget a connection", DELETE, ACK, &[FAMILY_IPV4, 0, 0, 0], |request| {
            request.nest_with_header(TUPLE_ORIGINAL, tuple, |_| {});
        });
    }
    socket.transact_tolerating(&batch, Some(Errno::NOENT))
}

fn put_filter(request: &mut Attributes<'_>, address: Ipv4Addr) {
    request.nest(TUPLE_ORIGINAL, |tuple| tuple.nest(TUPLE_IP, |ip| ip.bytes(IP_SOURCE, &address.octets())));
    request.nest(FILTER, |filter| {
        filter.native_u32(FILTER_ORIGINAL, FILTER_BY_SOURCE);
        filter.native_u32(FILTER_REPLY, 0);
    });
}

fn source_of(tuple: &[u8]) -> Option<Ipv4Addr> {
    let source = attribute(attribute(tuple, TUPLE_IP)?, IP_SOURCE)?;
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(source).ok()?))
}
