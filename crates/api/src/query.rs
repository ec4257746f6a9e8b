//! Parses query strings, with all encodings that SDKs use.

use percent_encoding::percent_decode_str;

/// Returns the decoded pairs of a query string. Both `+` and `%20` become a space.
pub fn pairs(query: &str) -> Vec<(String, String)> {
    let nonempty = query.split('&').filter(|pair| !pair.is_empty());
    nonempty
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Parses the metadata filter of a list. The SDKs encode each key and value, then the pairs, then the query. After the
/// query was decoded once, two layers are left.
pub fn metadata_filter(value: &str) -> Vec<(String, String)> {
    pairs(value).into_iter().map(|(key, value)| (decode(&key), decode(&value))).collect()
}

pub fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_filter_as_the_python_sdk_sends_it_is_understood() {
        let query = pairs("metadata=a%3Db%252520c%26k%252526y%3Dv&limit=100");
        assert_eq!(query[0].1, "a=b%2520c&k%2526y=v");
        let filter = metadata_filter(&query[0].1);
        assert_eq!(filter, [("a".into(), "b c".into()), ("k&y".into(), "v".into())]);
    }

    proptest! {
        #[test]
        fn anything_can_be_read(text in ".*") {
            let _ = metadata_filter(&text);
        }
    }
}
