//! Questions for others: the resolvers that this machine uses, in their order.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use super::message::answers;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS: u16 = 53;
/// The C library reads no more.
const MAX_SERVERS: usize = 3;
/// What the C library waits for a server.
const TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const MAX_MESSAGE: usize = 65_535;

/// The resolvers of this machine as it is now: networks come and go.
pub(super) async fn host_resolvers(own: Ipv4Addr) -> Vec<SocketAddr> {
    servers_of(&tokio::fs::read_to_string(RESOLV_CONF).await.unwrap_or_default(), own)
}

/// The first answer that one of them gives.
pub(super) async fn forward(query: &[u8], servers: &[SocketAddr], over_tcp: bool) -> Option<Vec<u8>> {
    for &server in servers {
        let asked = async {
            match over_tcp {
                true => ask_tcp(server, query).await,
                false => ask_udp(server, query).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%server, %error, "a resolver of this machine did not answer"),
            Err(_) => tracing::debug!(%server, "a resolver of this machine is silent"),
        }
    }
    None
}

/// Without ourselves: whoever wrote us there would have us ask ourselves for ever.
fn servers_of(text: &str, own: Ipv4Addr) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let server = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        server.parse::<IpAddr>().ok()
    };
    let usable = text.lines().filter_map(address).filter(|server| *server != IpAddr::V4(own));
    usable.take(MAX_SERVERS).map(|server| SocketAddr::new(server, DNS)).collect()
}

async fn ask_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own for each question, so that nobody can guess where the answer is awaited.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut reply = vec![0; MAX_MESSAGE];
    loop {
        let length = socket.recv(&mut reply).await?;
        if answers(&reply[..length], query) {
            reply.truncate(length);
            return Ok(reply);
        }
    }
}

async fn ask_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    let reply = read_message(&mut stream).await?;
    if answers(&reply, query) { Ok(reply) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Over TCP, messages have their length before them.
pub(super) async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests {
    use super::super::message::failure;
    use super::*;

    #[test]
    fn the_machines_resolvers_are_asked_in_their_order_but_never_ourselves() {
        let own = Ipv4Addr::new(127, 80, 1, 2);
        let text = "# nameserver 1.1.1.1\nnameserver 127.80.1.2\nnameserver 127.0.0.53\nsearch x\nnameserver ::1\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n";
        let found: Vec<String> = servers_of(text, own).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["127.0.0.53:53", "[::1]:53", "192.0.2.1:53"]);
        assert!(servers_of("", own).is_empty());
    }

    const QUERY: &[u8] = b"\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x00\x00\x01\x00\x01";

    #[tokio::test]
    async fn the_next_resolver_is_asked_when_one_does_not_answer_and_false_answers_do_not_count() {
        let good = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let address = good.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (length, client) = good.recv_from(&mut buffer).await.unwrap();
            let answer = failure(&buffer[..length]).unwrap();
            let mut forged = answer.clone();
            forged[1] ^= 1;
            good.send_to(&forged, client).await.unwrap();
            good.send_to(&answer, client).await.unwrap();
            answer
        });
        let found = forward(QUERY, &[closed, address], false).await;
        assert_eq!(found.unwrap(), answering.await.unwrap());
        assert_eq!(forward(QUERY, &[closed], false).await, None);
        assert_eq!(forward(QUERY, &[], true).await, None);
    }

    #[tokio::test]
    async fn long_answers_come_over_tcp() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut answer = failure(&read_message(&mut stream).await.unwrap()).unwrap();
            answer.resize(20_000, 7);
            write_message(&mut stream, &answer).await.unwrap();
            answer
        });
        let found = forward(QUERY, &[address], true).await;
        assert_eq!(found.unwrap(), answering.await.unwrap());
    }
}
