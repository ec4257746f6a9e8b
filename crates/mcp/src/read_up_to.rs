//! Reads a download into memory, with a limit.

use isopod_client::guest::{Download, GuestError};

/// The whole content, unless it has more bytes than that.
pub(crate) async fn read_up_to(mut download: Download, most: usize) -> Result<Option<Vec<u8>>, GuestError> {
    if download.size().is_some_and(|size| size > most as u64) {
        return Ok(None);
    }
    let mut all = Vec::new();
    while let Some(piece) = download.next().await? {
        if all.len() + piece.len() > most {
            return Ok(None);
        }
        all.extend_from_slice(&piece);
    }
    Ok(Some(all))
}
