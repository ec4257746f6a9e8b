//! Tells others what happened: each event is sent, signed, to the webhooks that want it, again and again until it is
//! accepted or too old. What is to be sent stands in the store, so nothing is lost with the server.

mod deliver;
mod post;

pub(crate) use deliver::run_deliveries;
pub(crate) use post::Poster;
