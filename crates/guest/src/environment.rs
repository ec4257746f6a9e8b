//! The environment variables that every process of a user gets.

use std::collections::BTreeMap;

use crate::users::User;

/// Used when the guest itself was started without a `PATH`.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every process of a user finds in its environment.
pub(crate) fn basic_environment(user: &User) -> BTreeMap<String, String> {
    let path = std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.to_owned());
    BTreeMap::from([
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), user.home.clone()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
    ])
}
