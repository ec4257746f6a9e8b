//! Encodes process events as frames of a stream. Output goes straight from the ring into the frame, because gigabytes may
//! pass here; all other events use the generated messages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, BytesMut};
use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::process_event::{EndEvent, Event, KeepAlive, StartEvent};
use isopod_wire::rpc::process::{ProcessEvent, StartResponse};

use crate::rpc::{Codec, frame_message};
use crate::stdio::Source;

/// How much output one event may hold, so that clients see progress and frames stay small.
pub(crate) fn max_chunk(source: Source) -> usize {
    match source {
        Source::Stdout | Source::Stderr => 32 << 10,
        Source::Pty => 16 << 10,
    }
}

/// Appends `{"event":{"data":{…}}}` with its envelope. `StartResponse` and `ConnectResponse` look the same.
pub(crate) fn put_output(codec: Codec, source: Source, data: &[u8], out: &mut BytesMut) {
    match codec {
        Codec::Json => put_output_json(source, data, out),
        Codec::Proto => put_output_proto(source, data, out),
    }
}

fn put_output_json(source: Source, data: &[u8], out: &mut BytesMut) {
    let opening: &[u8] = match source {
        Source::Stdout => br#"{"event":{"data":{"stdout":""#,
        Source::Stderr => br#"{"event":{"data":{"stderr":""#,
        Source::Pty => br#"{"event":{"data":{"pty":""#,
    };
    let encoded = data.len().div_ceil(3) * 4;
    put_envelope(opening.len() + encoded + 4, out);
    out.put_slice(opening);
    let start = out.len();
    out.resize(start + encoded, 0);
    STANDARD.encode_slice(data, &mut out[start..]).expect("the buffer has the exact length of the text");
    out.put_slice(br#""}}}"#);
}

fn put_output_proto(source: Source, data: &[u8], out: &mut BytesMut) {
    let tag = match source {
        Source::Stdout => 0x0a,
        Source::Stderr => 0x12,
        Source::Pty => 0x1a,
    };
    let bytes_field = 1 + varint_len(data.len()) + data.len();
    let data_field = 1 + varint_len(bytes_field) + bytes_field;
    let event_field = 1 + varint_len(data_field) + data_field;
    put_envelope(event_field, out);
    for (tag, len) in [(0x0a, data_field), (0x12, bytes_field), (tag, data.len())] {
        out.put_u8(tag);
        put_varint(len, out);
    }
    out.put_slice(data);
}

fn put_envelope(len: usize, out: &mut BytesMut) {
    out.reserve(5 + len);
    out.put_u8(0);
    out.put_u32(len as u32);
}

fn varint_len(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

fn put_varint(mut value: usize, out: &mut BytesMut) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_start(codec: Codec, pid: u32, out: &mut BytesMut) {
    put_event(codec, Event::Start(StartEvent { pid }), out);
}

pub(crate) fn put_end(codec: Codec, end: &EndEvent, out: &mut BytesMut) {
    put_event(codec, Event::End(end.clone()), out);
}

pub(crate) fn put_keepalive(codec: Codec, out: &mut BytesMut) {
    put_event(codec, Event::Keepalive(KeepAlive {}), out);
}

fn put_event(codec: Codec, event: Event, out: &mut BytesMut) {
    let message = StartResponse { event: MessageField::some(ProcessEvent { event: Some(event) }) };
    out.put_slice(&frame_message(codec, &message));
}

/// How a process ended, in the words that the SDKs expect.
pub(crate) fn end_event(status: rustix::process::WaitStatus) -> EndEvent {
    if let Some(signal) = status.terminating_signal() {
        let text = format!("signal: {}", signal_name(signal));
        return EndEvent { exit_code: -1, exited: false, status: text.clone(), error: Some(text) };
    }
    let code = status.exit_status().unwrap_or(-1);
    let text = format!("exit status {code}");
    let error = (code != 0).then(|| text.clone());
    EndEvent { exit_code: code, exited: true, status: text, error }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGSYS => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use isopod_wire::rpc::Message;
    use isopod_wire::rpc::process::process_event::data_event::Output;
    use proptest::prelude::*;

    use super::*;

    fn decode(codec: Codec, frame: &[u8]) -> StartResponse {
        assert_eq!(frame[0], 0);
        assert_eq!(u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize, frame.len() - 5);
        match codec {
            Codec::Json => serde_json::from_slice(&frame[5..]).unwrap(),
            Codec::Proto => StartResponse::decode_from_slice(&frame[5..]).unwrap(),
        }
    }

    fn output_of(response: StartResponse) -> Output {
        match response.event.into_option().unwrap().event.unwrap() {
            Event::Data(data) => data.output.unwrap(),
            other => panic!("not data: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn hand_made_output_frames_are_what_the_messages_say(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            for codec in [Codec::Json, Codec::Proto] {
                for source in [Source::Stdout, Source::Stderr, Source::Pty] {
                    let mut frame = BytesMut::new();
                    put_output(codec, source, &data, &mut frame);
                    let expected = match source {
                        Source::Stdout => Output::Stdout(data.clone().into()),
                        Source::Stderr => Output::Stderr(data.clone().into()),
                        Source::Pty => Output::Pty(data.clone().into()),
                    };
                    prop_assert_eq!(output_of(decode(codec, &frame)), expected);
                }
            }
        }
    }

    #[test]
    fn long_pieces_have_right_lengths() {
        let data = vec![7u8; 32 << 10];
        let mut frame = BytesMut::new();
        put_output(Codec::Proto, Source::Stderr, &data, &mut frame);
        assert_eq!(output_of(decode(Codec::Proto, &frame)), Output::Stderr(data.into()));
    }
}
