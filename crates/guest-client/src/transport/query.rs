//! Query strings: `?name=value&…`, encoded once.

use std::fmt::Write;

/// Collects pairs and appends them to a path.
#[derive(Debug, Default)]
pub struct Query(String);

impl Query {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(&encode(name));
        self.0.push('=');
        self.0.push_str(&encode(value));
        self
    }

    /// Adds a pair if there is a value.
    pub fn with_some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, &value.to_string()),
            None => self,
        }
    }

    /// Returns `path?name=value`.
    pub fn behind(&self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

/// Encodes everything but letters, digits and `-._~` as `%XX`, which is valid in every part of a URL.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_misread_is_encoded() {
        let query = Query::new().with("path", "/a b+c&d=é%").with_some("n", Some(5)).with_some("no", None::<u8>);
        assert_eq!(query.behind("/files"), "/files?path=%2Fa%20b%2Bc%26d%3D%C3%A9%25&n=5");
        assert_eq!(Query::new().behind("/x"), "/x");
    }
}
