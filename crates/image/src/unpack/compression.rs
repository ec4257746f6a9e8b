//! Detects the compression of a stream by its first bytes.

use std::io::{self, Read};

/// Decompresses gzip and zstd, and returns anything else unchanged.
///
/// # Errors
/// If the first bytes cannot be read.
pub fn decompress<'a>(mut stream: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    let mut first = [0; 4];
    let mut length = 0;
    while length < first.len() {
        match stream.read(&mut first[length..])? {
            0 => break,
            count => length += count,
        }
    }
    let whole = io::Cursor::new(first[..length].to_vec()).chain(stream);
    Ok(match first {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::new(whole)?),
        _ => Box::new(whole),
    })
}
