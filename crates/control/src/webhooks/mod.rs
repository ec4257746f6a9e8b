//! Tells others what happened: each event is sent, signed, to the webhooks that want it, again and again until it is
//! accepted or too old. What is to be sent stands in the store, so nothing is lost with the server.

mod address;
mod deliver;
mod post;
mod request;
mod trust;

pub(crate) use address::{Target, TargetError};
pub(crate) use deliver::run_deliveries;
pub(crate) use post::Poster;
pub(crate) use request::{PostError, fetch, request};
pub(crate) use trust::Trust;
