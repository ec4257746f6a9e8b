//! The port that clients know.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isopod_wire::INTERPRETER_PORT;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::TcpListener;

use super::{Host, route};
use crate::guest::Guest;
use crate::http;

const BACKLOG: i32 = 1024;

/// Listens on every address of both kinds, or of IPv4 alone where there is no IPv6.
pub(super) fn open(guest: &Arc<Guest>) -> io::Result<()> {
    let Some(host) = Host::new(guest) else { return Ok(()) };
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, INTERPRETER_PORT));
    let old = SocketAddr::from((Ipv4Addr::UNSPECIFIED, INTERPRETER_PORT));
    let listener = bind(AddressFamily::INET6, both).or_else(|_| bind(AddressFamily::INET, old))?;
    tokio::spawn(accept(TcpListener::from_std(listener)?, host));
    Ok(())
}

fn bind(family: AddressFamily, address: SocketAddr) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

async fn accept(listener: TcpListener, host: Host) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Events are small, and each shall arrive at once.
                let _ = stream.set_nodelay(true);
                let host = host.clone();
                tokio::spawn(http::serve(stream, move |request| route::answer(host.clone(), request)));
            }
            // Out of descriptors or memory: others will give some back.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
