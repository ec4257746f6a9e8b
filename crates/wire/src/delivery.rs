//! How the edge reports to a guest how much of an output stream its client has received.
//!
//! The edge opens one channel to a guest: a `POST` to [`PATH`] that is upgraded to [`PROTOCOL`]. The guest returns the number
//! of the channel in [`CHANNEL_HEADER`], and the edge sends it in the same header of each `Start` and `Connect`. The guest
//! then numbers the stream in [`STREAM_HEADER`], and the edge sends a [`Report`] whenever it has forwarded a part of that
//! stream's body. When a channel closes, no more reports about its streams follow; the last one of each counts.
//!
//! A report costs a system call, and a server that is killed between that and the write of the output loses it. So the edge
//! attaches memory to the channel: descriptor and all, with the first bytes of the connection. The guest then names the
//! stream's place in that memory in [`SLOT_HEADER`], the edge stores positions there, and only the last report of the stream
//! is sent. A guest that has no place left, or is older than this, gets reports.
//!
//! A `Connect` starts at the reported position, so it says in [`REPORTS_HEADER`] how many reports were sent before it: the
//! channel and the call are different connections, and the call may arrive first.

/// The path that opens a channel. Only the host may use it.
pub const PATH: &str = "/delivery";
/// The protocol of a channel: reports, one after the other, from the edge to the guest.
pub const PROTOCOL: &str = "isopod-delivery";
/// The number of a channel.
pub const CHANNEL_HEADER: &str = "x-isopod-delivery";
/// The number of a stream whose delivery the edge reports.
pub const STREAM_HEADER: &str = "x-isopod-stream";
/// Where in the channel's memory the edge stores the position of a stream.
pub const SLOT_HEADER: &str = "x-isopod-slot";
/// What the edge sends with the memory, before the request: HTTP skips an empty line there.
pub const PREAMBLE: &[u8] = b"\r\n";
/// How many reports were sent on the channel before the call.
pub const REPORTS_HEADER: &str = "x-isopod-reports";

/// How much of a stream its client has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number that the guest gave it.
    pub stream: u64,
    /// The number of bytes from the start of the body. It may be less than in an earlier report, if the client was gone when
    /// the rest was sent.
    pub bytes: u64,
    /// Whether this is the last report about the stream.
    pub last: bool,
}

impl Report {
    /// The length of a report.
    pub const LEN: usize = 17;

    /// Encodes the report for the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = u8::from(self.last);
        bytes[1..9].copy_from_slice(&self.stream.to_be_bytes());
        bytes[9..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    /// Decodes a report.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let number =
            |range: std::ops::Range<usize>| bytes[range].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self { last: bytes[0] != 0, stream: number(1..9), bytes: number(9..17) }
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn a_report_arrives_as_it_was_sent() {
        for last in [false, true] {
            let report = Report { stream: 0x0102_0304_0506_0708, bytes: u64::MAX - 1, last };
            assert_eq!(Report::decode(&report.encode()), report);
        }
    }
}
