//! Entry points for the fuzz targets in `/fuzz`: the parsers of what the kernel sends over netlink sockets. Each
//! function takes any bytes and panics if its parser breaks a promise.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::netlink::Socket;
use super::{flows, nft, route};

/// Parses the bytes as the reply to each request that we make.
pub fn netlink_answer(data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let _ = route::links(&mut answered(data).0);
    let _ = route::traffic(&mut answered(data).0);
    let _ = route::addresses(&mut answered(data).0);
    let _ = route::is_operational(&mut answered(data).0, 1);
    if let Ok(routes) = route::routes(&mut answered(data).0) {
        assert!(routes.iter().all(|route| route.destination.prefix() <= 32));
    }
    let _ = nft::chains(&mut answered(data).0);
    let _ = nft::tables(&mut answered(data).0);
    let _ = nft::interfaces_in(&mut answered(data).0, "isopod", "sandboxes");
    let addresses = BTreeSet::from([Ipv4Addr::new(10, 200, 0, 2)]);
    let _ = flows::forget(&mut answered(data).0, &addresses);
}

/// A socket that already holds the reply. The other end must stay open.
fn answered(data: &[u8]) -> (Socket, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, kernels) = pair.expect("could not create a pair of sockets");
    send(&kernels, data, SendFlags::DONTWAIT).expect("a short message fits into the socket's buffer");
    (Socket::over(ours), kernels)
}
