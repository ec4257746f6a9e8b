//! Short URLs for the previews of sandboxes: `/s/{7 hexadecimal digits}` leads to a port of a sandbox until it expires.
//!
//! A short URL is a secret of 28 bits that anybody may open. Three things make that safe: what it leads to is public
//! already, it can lead only to a sandbox of its owner, and an address may open only a few wrong ones per minute.

mod open;
mod publish;
mod unpublish;

pub(crate) use publish::{NewShortUrl, PublishedPort};
