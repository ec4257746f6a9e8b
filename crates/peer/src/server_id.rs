//! The id of a server, which is also a part of the name in its certificate.

use std::fmt;
use std::sync::Arc;

/// The domain of the names in certificates. It is never resolved.
const DOMAIN: &str = ".node.isopod.internal";
const MAX_LENGTH: usize = 63;

/// The id of a server: what is in `server-id` of its state directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server's id has 1 to 63 lowercase letters, digits or dashes, and no dash at its ends")]
pub struct ServerIdError;

impl ServerId {
    /// # Errors
    /// If it cannot be a part of a host name.
    pub fn parse(text: &str) -> Result<Self, ServerIdError> {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_valid = !text.is_empty() && text.len() <= MAX_LENGTH && text.bytes().all(is_fine);
        match is_valid && !text.starts_with('-') && !text.ends_with('-') {
            true => Ok(Self(text.into())),
            false => Err(ServerIdError),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in the server's certificate.
    pub(crate) fn certificate_name(&self) -> String {
        format!("{}{DOMAIN}", self.0)
    }

    pub(crate) fn of_certificate_name(name: &str) -> Option<Self> {
        Self::parse(name.strip_suffix(DOMAIN)?).ok()
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_part_of_a_name_is_an_id() {
        for bad in ["", "A", "a.b", "a b", "-a", "a-", "a_b", "é", &"a".repeat(64)] {
            assert_eq!(ServerId::parse(bad), Err(ServerIdError), "{bad:?}");
        }
        let id = ServerId::parse("5cb0a1e2-0000-4000-8000-000000000000").unwrap();
        assert_eq!(ServerId::of_certificate_name(&id.certificate_name()), Some(id));
        assert_eq!(ServerId::of_certificate_name("a.b.node.isopod.internal"), None);
        assert_eq!(ServerId::of_certificate_name("a.node.isopod.internal.evil.example"), None);
    }
}
