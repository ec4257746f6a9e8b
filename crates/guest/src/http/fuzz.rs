//! Fuzzed: queries and the name in an `Authorization` header.

use http::HeaderValue;

use super::{Query, basic_user};
use crate::paths;
use crate::users::User;

/// Parses a query; its values are also taken as paths, and the bytes as credentials.
pub fn query(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let query = Query::parse(Some(&text));
    let home = User { name: "user".into(), uid: 1000, gid: 1000, home: "/home/user".into(), shell: "/bin/sh".into() };
    for value in query.all("path") {
        if let Ok(path) = paths::resolve(value, &home, None) {
            assert!(path.is_absolute() && !value.contains('\0'), "{path:?}");
        }
    }
    let _ = basic_user(HeaderValue::from_bytes(data).ok().as_ref());
}
