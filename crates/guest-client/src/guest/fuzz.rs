//! Fuzz targets for what a guest sends, which may be any program.

use bytes::Bytes;
use isopod_wire::rpc::{filesystem, process};

use super::Codec;
use super::entries::parse_entry;
use super::event::parse_event;
use super::rpc::fuzz::{decode, take_frames};
use super::tree;
use super::write_file::parse_written;

const MAX_ENTRIES: usize = 8;

/// The first byte determines the size of the pieces. Every frame is parsed as every message, in both codecs.
pub fn connect_reply(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    take_frames(data, usize::from(*step) + 1, read_message);
    if let Ok(tree) = tree::parse(data, MAX_ENTRIES) {
        assert!(tree.entries.len() <= MAX_ENTRIES && tree.unreadable.len() <= MAX_ENTRIES);
    }
    let _ = parse_written(data);
}

fn read_message(payload: &Bytes) {
    for codec in [Codec::Binary, Codec::Json] {
        let events = [
            decode::<process::StartResponse>(codec, payload).and_then(|reply| reply.event.into_option()),
            decode::<process::ConnectResponse>(codec, payload).and_then(|reply| reply.event.into_option()),
        ];
        events.into_iter().flatten().for_each(|event| drop(parse_event(event)));
        if let Some(listing) = decode::<filesystem::ListDirResponse>(codec, payload) {
            listing.entries.into_iter().for_each(|entry| drop(parse_entry(Some(entry))));
        }
        decode::<process::ListResponse>(codec, payload);
        decode::<filesystem::WatchDirResponse>(codec, payload);
        decode::<filesystem::GetWatcherEventsResponse>(codec, payload);
    }
}
