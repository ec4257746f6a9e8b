//! HTTP/1.1 over any byte stream: TCP, TLS, a Unix socket, or a custom connector.

mod base_url;
mod body;
mod connector;
mod error;
mod http;
mod query;
mod reply;
mod tls;
mod upload;

pub use base_url::{BaseUrl, UrlError};
pub use body::{Body, empty_body, full_body};
pub use connector::{ByteStream, Connector, Dial, DialFuture, Origin};
pub use error::TransportError;
pub use http::Http;
pub use query::{Query, encode};
pub use reply::{message_of, read_limited};
pub use tls::{Trust, TrustError};

pub(crate) use body::BoxError;
