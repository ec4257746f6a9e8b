//! Listens on the interpreter's TCP port.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isopod_wire::INTERPRETER_PORT;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::TcpListener;

use super::{Interpreter, route};
use crate::http;

const BACKLOG: i32 = 1024;

/// Listens on all IPv6 and IPv4 addresses, or on IPv4 alone if there is no IPv6.
pub(super) fn open(interpreter: &Arc<Interpreter>) -> io::Result<()> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, INTERPRETER_PORT));
    let old = SocketAddr::from((Ipv4Addr::UNSPECIFIED, INTERPRETER_PORT));
    let listener = bind(AddressFamily::INET6, both).or_else(|_| bind(AddressFamily::INET, old))?;
    tokio::spawn(accept(TcpListener::from_std(listener)?, Arc::clone(interpreter)));
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

async fn accept(listener: TcpListener, interpreter: Arc<Interpreter>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Events are small and should arrive at once.
                let _ = stream.set_nodelay(true);
                let interpreter = Arc::clone(&interpreter);
                tokio::spawn(http::serve(stream, move |request| route::answer(Arc::clone(&interpreter), request)));
            }
            // Out of descriptors or memory. Retry once other connections have released some.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
