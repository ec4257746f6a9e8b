//! Writes many files with one request: a form with a part for each file.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::HeaderValue;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::{Guest, GuestError, Upload, WrittenFile};
use crate::transport::{BoxError, Query};

impl Guest {
    /// Writes files in one request. Creates missing directories, and replaces existing files. Each path may occur once.
    /// If it fails, the files before the failed one are written.
    ///
    /// # Errors
    /// Like [`Self::write_file`].
    pub async fn write_files(&self, files: Vec<(String, Upload)>) -> Result<Vec<WrittenFile>, GuestError> {
        let query = Query::new().with_some("username", self.user.as_deref());
        let boundary = new_boundary();
        let kind = format!("multipart/form-data; boundary={boundary}");
        let kind = HeaderValue::try_from(kind).expect("the boundary has only letters and digits");
        let count = files.len();
        self.send_files(&query.behind("/files"), kind, form(&boundary, files), count).await
    }
}

/// The boundary cannot be predicted and put into a file, because the seeds of the standard library's hash maps are
/// random.
fn new_boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("isopod{:016x}{:016x}", random(), random())
}

fn form(boundary: &str, files: Vec<(String, Upload)>) -> Upload {
    let delimiter = boundary.to_owned();
    let parts = stream::iter(files).flat_map(move |(path, contents)| {
        let head = stream::iter([Ok::<_, BoxError>(Frame::data(head(&delimiter, &path)))]);
        let body = http_body_util::BodyStream::new(contents.0);
        let end = stream::iter([Ok(Frame::data(Bytes::from_static(b"\r\n")))]);
        head.chain(body).chain(end)
    });
    let last = stream::iter([Ok(Frame::data(Bytes::from(format!("--{boundary}--\r\n"))))]);
    Upload(BodyExt::boxed_unsync(StreamBody::new(parts.chain(last))))
}

fn head(boundary: &str, path: &str) -> Bytes {
    let mut quoted = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/' => quoted.push(char::from(byte)),
            other => quoted.push_str(&format!("%{other:02X}")),
        }
    }
    format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''{quoted}\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_cannot_break_out_of_their_part() {
        let files = vec![("/a \"b\"\r\n--x/é".to_owned(), Upload::from("1")), ("/c".to_owned(), Upload::from(""))];
        let body = form("B", files).0.collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert_eq!(text.matches("--B\r\n").count(), 2);
        assert!(text.contains("filename*=utf-8''/a%20%22b%22%0D%0A--x/%C3%A9\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n\r\n--B--\r\n"), "{text:?}");
    }
}
