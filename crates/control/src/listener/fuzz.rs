//! Fuzz targets for requests on a connection.

use isopod_api::Framing;

/// A request with two lengths, whatever comes before it.
const SMUGGLED: &[u8] = b"\nGET / HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked\n\n";

/// The first byte determines the size of the pieces. The result must not depend on it, also for the following requests.
pub fn http_framing(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let (mut in_pieces, mut whole) = (Framing::default(), Framing::default());
    let is_refused = data.chunks(usize::from(*step) + 1).any(|piece| in_pieces.sees_two_lengths(piece));
    assert_eq!(whole.sees_two_lengths(data), is_refused);
    // A connection ends with a refused request.
    if !is_refused {
        assert_eq!(whole.sees_two_lengths(SMUGGLED), in_pieces.sees_two_lengths(SMUGGLED));
    }
}
