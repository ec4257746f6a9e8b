//! A request to the guest by hand, for what no client would send.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Sends one request and gives the whole answer. The target goes out as it is.
pub(crate) async fn request(socket: &Path, method: &str, target: &[u8], body: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.expect("the guest listens");
    let mut request = method.as_bytes().to_vec();
    request.push(b' ');
    request.extend_from_slice(target);
    let headers = "host: localhost\r\ncontent-type: application/json\r\nconnection: close\r\nx-isopod-control: 1";
    request.extend_from_slice(
        format!(" HTTP/1.1\r\n{headers}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes(),
    );
    stream.write_all(&request).await.expect("the guest reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the guest answers");
    String::from_utf8_lossy(&answer).into_owned()
}
