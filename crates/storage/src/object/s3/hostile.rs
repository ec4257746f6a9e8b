//! Stores that send more than they were asked for. Their responses are collected in memory, so each has a limit.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

const ENDLESS_LISTING: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<ListBucketResult>";
const ENDLESS_PART: &str = "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-9/10\r\nconnection: close\r\n\r\n";
const ENDLESS_OBJECT: &str = "HTTP/1.1 200 OK\r\netag: \"tag\"\r\nconnection: close\r\n\r\n";
const ENDLESS_ERROR: &str = "HTTP/1.1 503 Busy\r\nconnection: close\r\n\r\n<Error>";
const WHOLE_OBJECT: &str =
    "HTTP/1.1 200 OK\r\netag: \"tag\"\r\ncontent-length: 10\r\nconnection: close\r\n\r\n0123456789";

/// A store whose server sends this to the first request, and then zeros for as long as they are read. The task returns
/// how many it sent.
async fn store_of(answer: &'static str) -> (S3Store, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = Credentials { access_key: "key".to_owned(), secret_key: "secret".to_owned(), session_token: None };
    let mut settings = S3Settings::new("bucket", "us-east-1", keys);
    settings.endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (piece, mut sent) = ([0; 1 << 16], 0);
        while stream.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        sent
    });
    (S3Store::new(settings).unwrap(), serving)
}

/// What fits between the server and the client besides the response that was read.
const SOCKET_BUFFERS: usize = 32 << 20;

#[tokio::test]
async fn a_listing_without_end_is_cut() {
    let (store, serving) = store_of(ENDLESS_LISTING).await;
    let cut = store.list(&ListRequest::default()).await.unwrap_err();
    assert!(matches!(cut, StoreError::Garbled { what: "list" }), "{cut:?}");
    assert!(serving.await.unwrap() < (16 << 20) + SOCKET_BUFFERS);
}

#[tokio::test]
async fn a_part_of_an_object_that_is_longer_than_requested_is_cut() {
    let (store, serving) = store_of(ENDLESS_PART).await;
    let cut = store.get("key", "tag", 0..10).await.unwrap_err();
    assert!(matches!(cut, StoreError::Garbled { what: "get" }), "{cut:?}");
    assert!(serving.await.unwrap() < SOCKET_BUFFERS);
}

#[tokio::test]
async fn an_object_without_end_from_a_server_without_ranges_is_cut() {
    let (store, serving) = store_of(ENDLESS_OBJECT).await;
    let cut = store.get("key", "tag", 0..10).await.unwrap_err();
    assert!(matches!(cut, StoreError::Garbled { what: "get" }), "{cut:?}");
    assert!(serving.await.unwrap() < (96 << 20) + SOCKET_BUFFERS);
}

#[tokio::test]
async fn a_refusal_without_end_is_cut() {
    let (store, serving) = store_of(ENDLESS_ERROR).await;
    let cut = store.get("key", "tag", 0..10).await.unwrap_err();
    assert!(matches!(cut, StoreError::Garbled { what: "get" }), "{cut:?}");
    assert!(serving.await.unwrap() < (16 << 20) + SOCKET_BUFFERS);
}

#[tokio::test]
async fn a_server_without_ranges_still_gives_a_part_of_an_object() {
    let (store, _serving) = store_of(WHOLE_OBJECT).await;
    assert_eq!(store.get("key", "tag", 3..5).await.unwrap(), "34");
}
