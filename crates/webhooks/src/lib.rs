//! Sends events to webhooks: each event is signed and sent to its subscribers, until it is accepted or too old.
//! Deliveries are in the store, so none is lost with the server.

mod deliver;
mod post;

pub use deliver::run_deliveries;
pub use post::Poster;
