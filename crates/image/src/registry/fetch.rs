//! Downloads a file from the web for `ADD`: over http or https, following redirects, into the store under its hash. If
//! the hash is known in advance and the store has the file, it is not downloaded again. So each team needs a store of
//! its own, because a hash is not a secret.
//!
//! The same rule applies as for registries: an internal address is contacted only if the settings name it, even after a
//! redirect.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use ::http::header::LOCATION;
use ::http::{HeaderMap, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Body;
use isopod_outbound::ResponseBody;
use sha2::{Digest as _, Sha256};

use super::auth::{MAX_REDIRECTS, join};
use super::blob::LOOK_EVERY;
use super::http::{Dialer, is_internal};
use super::{IDLE_TIMEOUT, RegistrySettings};
use crate::Digest;
use crate::store::{Store, StoreError, failed};

/// Why a file could not be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The text is not a URL of the web.
    #[error("{0:?} is not an http or https URL of a file")]
    Address(String),
    /// The settings forbid it.
    #[error("no server may be contacted, because `offline` is among the registry mirrors")]
    Offline,
    /// An internal address that the settings do not name.
    #[error("{0} leads to an internal address; the operator can name it as a mirror or allow it with --allow-outbound")]
    Internal(String),
    /// The server does not respond, or stops sending.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// The host in the URL.
        host: String,
        reason: String,
    },
    /// The response is unexpected.
    #[error("unexpected response from {host}: {what}")]
    Answer {
        /// The host in the URL.
        host: String,
        what: String,
    },
    /// The file exceeds the limit.
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    /// There is not enough disk space.
    #[error("the server's disk does not have enough free space for the file")]
    NoRoom,
    /// The store failed, or the file does not match its checksum.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A file in the store.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub digest: Digest,
    /// The path, which is valid until the next collection of the store.
    pub path: PathBuf,
}

/// Downloads a file into the store.
///
/// # Errors
/// If it cannot be downloaded, is larger than `most`, or does not match `checksum`.
pub async fn fetch(
    store: &Store,
    url: &str,
    checksum: Option<&Digest>,
    most: u64,
    settings: &RegistrySettings,
) -> Result<Fetched, FetchError> {
    if let Some((digest, path)) = checksum.and_then(|digest| Some((digest, store.blob(digest)?))) {
        return Ok(Fetched { digest: digest.clone(), path });
    }
    if settings.offline {
        return Err(FetchError::Offline);
    }
    let _adding = store.adding()?;
    let (uri, is_named) = address(url, settings)?;
    let host = uri.host().unwrap_or_default().to_owned();
    let dialer = match uri.authority().filter(|_| is_named) {
        Some(place) => Dialer::with_place(settings.outbound.clone(), place.as_str(), uri.scheme_str() == Some("http")),
        None => Dialer::new(settings.outbound.clone()),
    };
    let reply = open(&uri, dialer, &host).await?;
    let path = store.nameless();
    let received = receive(reply, store, &path, most, &host).await;
    let checked = received.and_then(|digest| match checksum {
        Some(wanted) if *wanted != digest => Err(StoreError::Digest { wanted: wanted.clone(), got: digest }.into()),
        _ => Ok(digest),
    });
    match checked {
        Ok(digest) => Ok(Fetched { path: store.keep(&path, &digest)?, digest }),
        Err(error) => {
            let _ = std::fs::remove_file(&path);
            Err(error)
        }
    }
}

/// The address to contact, and whether the settings name it.
fn address(url: &str, settings: &RegistrySettings) -> Result<(Uri, bool), FetchError> {
    let wrong = || FetchError::Address(url.to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let rest = rest.split('#').next().unwrap_or_default();
    if !matches!(scheme, "http" | "https")
        || rest.split('/').next().is_none_or(|host| host.is_empty() || host.contains('@'))
    {
        return Err(wrong());
    }
    let (text, is_named) = match settings.mirrors_of(rest).first() {
        Some((mirror, rest)) => {
            (format!("{}://{}{rest}", if mirror.plain { "http" } else { "https" }, mirror.to), true)
        }
        None => (format!("{scheme}://{rest}"), false),
    };
    Ok((text.parse().map_err(|_| wrong())?, is_named))
}

async fn open(uri: &Uri, dialer: Dialer, host: &str) -> Result<Response<ResponseBody>, FetchError> {
    let answers = |what: String| FetchError::Answer { host: host.to_owned(), what };
    let mut uri = uri.clone();
    for _ in 0..MAX_REDIRECTS {
        let reply = dialer.get(&uri, HeaderMap::new()).await.map_err(|error| match is_internal(&error) {
            true => FetchError::Internal(host.to_owned()),
            false => FetchError::Unreachable { host: host.to_owned(), reason: error.to_string() },
        })?;
        match reply.status() {
            status if status.is_success() => return Ok(reply),
            status if status.is_redirection() => {
                let location = reply.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
                uri = join(&uri, location).ok_or_else(|| answers(format!("a bad redirect to {location:?}")))?;
            }
            status => return Err(answers(format!("status {status}"))),
        }
    }
    Err(answers("too many redirects".to_owned()))
}

async fn receive(
    reply: Response<ResponseBody>,
    store: &Store,
    path: &PathBuf,
    most: u64,
    host: &str,
) -> Result<Digest, FetchError> {
    let broken = |reason: String| FetchError::Unreachable { host: host.to_owned(), reason };
    if reply.body().size_hint().lower() > most {
        return Err(FetchError::TooLarge(most));
    }
    if reply.body().size_hint().lower().max(1) > store.room() {
        return Err(FetchError::NoRoom);
    }
    let mut file = File::create(path).map_err(failed("write", path))?;
    let mut body = reply.into_body();
    let (mut hash, mut bytes, mut looked_at) = (Sha256::new(), 0, 0);
    loop {
        let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await;
        let frame = frame.map_err(|_| broken("it stopped sending".to_owned()))?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|error| broken(error.to_string()))?.into_data() else { continue };
        bytes += data.len() as u64;
        if bytes > most {
            return Err(FetchError::TooLarge(most));
        }
        if bytes - looked_at >= LOOK_EVERY {
            looked_at = bytes;
            if store.room() == 0 {
                return Err(FetchError::NoRoom);
            }
        }
        hash.update(&data);
        file.write_all(&data).map_err(|error: io::Error| failed("write", path)(error))?;
    }
    Ok(Digest::from_hash(hash.finalize().as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_web_are_called_and_mirrors_come_first() {
        let settings = RegistrySettings {
            mirrors: vec!["files.example/pub=http://127.0.0.1:8000/x".parse().unwrap()],
            ..RegistrySettings::default()
        };
        let found = |url: &str| address(url, &settings).map(|(uri, is_named)| (uri.to_string(), is_named));
        assert_eq!(found("https://a.example/b?c#d").unwrap(), ("https://a.example/b?c".to_owned(), false));
        assert_eq!(found("https://files.example/pub/f").unwrap(), ("http://127.0.0.1:8000/x/f".to_owned(), true));
        for bad in [
            "",
            "a.example/b",
            "ftp://a.example/b",
            "https://",
            "https:///x",
            "https://me:pw@a.example/",
            "file:///etc",
        ] {
            assert!(found(bad).is_err(), "{bad:?}");
        }
    }

    /// Answers one request on loopback with the given response.
    fn serve_once(answer: String) -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        });
        port
    }

    fn file() -> String {
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi".to_owned()
    }

    fn allowing(places: &[String]) -> RegistrySettings {
        let places = places.iter().map(|place| place.parse().unwrap()).collect();
        RegistrySettings { outbound: isopod_outbound::Policy::new(places), ..RegistrySettings::default() }
    }

    #[tokio::test]
    async fn an_internal_server_is_not_called_unless_the_settings_name_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let lan = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // The host's own address in its network, if it has one.
        let lan = lan.connect("1.1.1.1:9").and_then(|()| lan.local_addr()).map(|address| address.ip().to_string());
        let hosts = ["127.0.0.1".to_owned(), "10.255.255.1".to_owned(), lan.unwrap_or_else(|_| "127.0.0.2".to_owned())];
        for host in hosts {
            let url = format!("http://{host}:9/f");
            let error = fetch(&store, &url, None, 10, &RegistrySettings::default()).await.unwrap_err();
            assert!(matches!(error, FetchError::Internal(_)), "{host}: {error}");
        }
        let port = serve_once(file());
        let allowed = allowing(&[format!("127.0.0.1:{port}")]);
        let fetched = fetch(&store, &format!("http://127.0.0.1:{port}/f"), None, 10, &allowed).await.unwrap();
        assert_eq!(fetched.digest, Digest::of(b"hi"));
    }

    #[tokio::test]
    async fn a_redirect_to_an_internal_server_is_not_followed_even_from_one_that_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let secret = serve_once(file());
        let link = format!("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{secret}/f\r\ncontent-length: 0\r\n\r\n");
        let port = serve_once(link.clone());
        let named = allowing(&[format!("127.0.0.1:{port}")]);
        let error = fetch(&store, &format!("http://127.0.0.1:{port}/f"), None, 10, &named).await.unwrap_err();
        assert!(matches!(error, FetchError::Internal(_)), "{error}");
        let port = serve_once(link);
        let mirror = format!("files.example=http://127.0.0.1:{port}").parse().unwrap();
        let named = RegistrySettings { mirrors: vec![mirror], ..RegistrySettings::default() };
        let error = fetch(&store, "http://files.example/f", None, 10, &named).await.unwrap_err();
        assert!(matches!(error, FetchError::Internal(_)), "{error}");
    }
}
