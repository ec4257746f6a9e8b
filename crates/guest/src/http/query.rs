//! The query string of a request. `%20` and `+` both mean a space.

/// Decoded names and values, in order.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    /// All values of this name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?));
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn nibble(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_spellings_of_a_space_are_understood() {
        let query = Query::parse(Some("path=/a%20b+c%2Bd&username=&x"));
        assert_eq!(query.get("path"), Some("/a b c+d"));
        assert_eq!(query.get("username"), Some(""));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), None);
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(Query::parse(Some("a=%&b=%4&c=%zz&d=%é")).get("c"), Some("%zz"));
    }

    proptest! {
        #[test]
        fn any_text_parses(text in ".{0,100}") {
            Query::parse(Some(&text));
        }
    }
}
