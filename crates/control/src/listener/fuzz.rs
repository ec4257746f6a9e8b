//! Fuzzed: requests as they come on a connection.

use super::framing::Framing;

/// Two lengths in one request, whatever came before it.
const SMUGGLED: &[u8] = b"\nGET / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\n";

/// The first byte says in which pieces the bytes come. They say the same as the whole, also about what follows.
pub fn http_framing(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let (mut in_pieces, mut whole) = (Framing::default(), Framing::default());
    let is_refused = data.chunks(usize::from(*step) + 1).any(|piece| in_pieces.sees_two_lengths(piece));
    assert_eq!(whole.sees_two_lengths(data), is_refused);
    // A connection ends with a request that is refused.
    if !is_refused {
        assert_eq!(whole.sees_two_lengths(SMUGGLED), in_pieces.sees_two_lengths(SMUGGLED));
    }
}
