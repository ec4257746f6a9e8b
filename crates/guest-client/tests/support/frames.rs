//! Frames as a guest writes them.

use bytes::{BufMut, Bytes, BytesMut};
use isopod_wire::rpc::process::process_event::data_event::Output;
use isopod_wire::rpc::process::process_event::{DataEvent, EndEvent, Event, KeepAlive, StartEvent};
use isopod_wire::rpc::process::{ProcessEvent, StartResponse};
use isopod_wire::rpc::{Message, MessageField};

pub fn start(pid: u32) -> Bytes {
    event(Event::Start(StartEvent { pid }))
}

pub fn stdout(bytes: impl Into<Bytes>) -> Bytes {
    event(Event::Data(DataEvent { output: Some(Output::Stdout(bytes.into())) }))
}

pub fn keepalive() -> Bytes {
    event(Event::Keepalive(KeepAlive {}))
}

pub fn end(exit_code: i32) -> Bytes {
    event(Event::End(EndEvent { exit_code, exited: true, status: format!("exit status {exit_code}"), error: None }))
}

pub fn end_of_stream(json: &str) -> Bytes {
    frame(2, json.as_bytes())
}

pub fn frame(flags: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(flags);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
    out.freeze()
}

fn event(event: Event) -> Bytes {
    let event = ProcessEvent { event: Some(event) };
    frame(0, &StartResponse { event: MessageField::some(event) }.encode_to_vec())
}

/// One buffer out of many.
pub fn join(frames: &[Bytes]) -> Bytes {
    frames.concat().into()
}
