//! Estimates how much memory a JSON text takes when it is parsed. Sixteen megabytes of `[{},{},…` become a gigabyte of
//! maps, so the length of a text alone says little.

/// The size of a map or a list with one entry, and of one entry of either, in bytes. Generous.
const MAP: usize = 640;
const LIST: usize = 160;
const ENTRY: usize = 40;

/// An upper estimate for `serde_json::Value`. Reads each byte once and allocates nothing. For invalid JSON, the result
/// is meaningless.
pub(super) fn json_weight(text: &[u8]) -> usize {
    let mut weight = text.len();
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => weight += MAP,
            b'[' => weight += LIST,
            b',' => weight += ENTRY,
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    weight
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values_weigh_more_than_their_text_and_texts_do_not() {
        let text = format!("\"{}\\\"{{[,\"", "x".repeat(100));
        assert_eq!(json_weight(text.as_bytes()), text.len());
        let maps = format!("[{}{{}}]", "{},".repeat(999));
        assert!(json_weight(maps.as_bytes()) > 1000 * MAP);
        assert_eq!(json_weight(b"\"open"), 5);
        assert_eq!(json_weight(b"\"open\\"), 6);
    }
}
