//! The messages of the two RPC services that a guest serves: `process.Process` and `filesystem.Filesystem`.
//!
//! The code in `gen` is made from `proto/*.proto` by `proto/regenerate.sh` and checked in, so that building needs no
//! protoc. Every message speaks protobuf (`buffa::Message`) and proto3 JSON (serde).

/// Package `filesystem`.
#[allow(
    clippy::all,
    missing_debug_implementations,
    non_camel_case_types,
    unreachable_pub,
    unused_qualifications,
    dead_code
)]
#[rustfmt::skip]
#[path = "gen/filesystem.rs"]
pub mod filesystem;

/// Package `process`.
#[allow(
    clippy::all,
    missing_debug_implementations,
    non_camel_case_types,
    unreachable_pub,
    unused_qualifications,
    dead_code
)]
#[rustfmt::skip]
#[path = "gen/process.rs"]
pub mod process;

pub use buffa::{EnumValue, Message, MessageField};
pub use buffa_types::google::protobuf::Timestamp;

#[cfg(test)]
mod tests {
    use buffa::Message;

    use super::{MessageField, filesystem, process};

    fn start_response(output: process::process_event::data_event::Output) -> process::StartResponse {
        let data = process::process_event::DataEvent { output: Some(output) };
        let event = process::ProcessEvent { event: Some(process::process_event::Event::Data(data)) };
        process::StartResponse { event: MessageField::some(event) }
    }

    #[test]
    fn output_events_look_as_the_sdks_expect_in_json() {
        let response = start_response(process::process_event::data_event::Output::Stdout("hi\n".into()));
        let json = serde_json::to_string(&response).unwrap();
        assert_eq!(json, r#"{"event":{"data":{"stdout":"aGkK"}}}"#);
        assert_eq!(serde_json::from_str::<process::StartResponse>(&json).unwrap(), response);
    }

    #[test]
    fn field_numbers_are_those_of_the_protocol() {
        let response = start_response(process::process_event::data_event::Output::Pty("x".into()));
        assert_eq!(response.encode_to_vec(), [0x0a, 5, 0x12, 3, 0x1a, 1, b'x']);
        let end = process::process_event::EndEvent { exit_code: -1, ..Default::default() };
        assert_eq!(end.encode_to_vec(), [0x08, 1]);
    }

    #[test]
    fn sizes_are_strings_and_types_are_names_in_json() {
        let entry = filesystem::EntryInfo {
            r#type: filesystem::FileType::FILE_TYPE_FILE.into(),
            size: 3,
            ..Default::default()
        };
        assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"type":"FILE_TYPE_FILE","size":"3"}"#);
    }

    #[test]
    fn the_start_request_of_the_sdks_parses() {
        let json = r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","ls"],"envs":{"A":"1"}},"stdin":false,"new":1}"#;
        let request: process::StartRequest = serde_json::from_str(json).unwrap();
        assert_eq!(request.stdin, Some(false));
        assert_eq!(request.process.args, ["-l", "-c", "ls"]);
        assert!(request.pty.is_unset());
    }
}
