//! Netlink messages as bytes: building them, sending a batch at once, and reading the kernel's replies. This module
//! knows only the three message kinds that every family shares (error, done, and the flags).
//!
//! The kernel handles a netlink request inside `send`. When `send` returns, every reply is already in the socket. So
//! nothing here ever blocks, and a missing reply is an error instead of a hang.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Marks a request.
const REQUEST: u16 = 0x001;
/// Requests a reply even on success.
pub(super) const ACK: u16 = 0x004;
/// Fails if the object exists.
pub(super) const EXCL: u16 = 0x200;
/// Creates the object if it does not exist.
pub(super) const CREATE: u16 = 0x400;
/// Adds the object at the end of its list.
pub(super) const APPEND: u16 = 0x800;
/// Requests all objects of a kind.
const DUMP: u16 = 0x300;
/// Set by the kernel on a dump during which the list changed.
const DUMP_INTERRUPTED: u16 = 0x010;
/// Marks an attribute that contains attributes.
const NESTED: u16 = 0x8000;
/// The bits of an attribute's kind that hold its number.
const KIND_MASK: u16 = 0x3fff;

const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// The kernel packs a dump into buffers of at most 32 KiB. An error returns the message that it is about.
const RECEIVE_BUFFER: usize = 128 * 1024;
/// The kernel refuses a batch that is larger than the send buffer. Policies with thousands of networks need this size.
const SEND_BUFFER: usize = 4 * 1024 * 1024;
/// If hundreds of sandboxes start and end every second, a long list rarely stays unchanged while it is read.
const DUMP_ATTEMPTS: u32 = 200;
const DUMP_PAUSE: Duration = Duration::from_millis(5);
/// A bit above every process id (the kernel's limit is 2^22), so that a port id with this bit belongs to no process.
const NO_PROCESS: u32 = 1 << 31;
/// How many random port ids to try. Even the first one is almost never taken.
const PORT_ATTEMPTS: u32 = 16;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot bind a netlink socket to a port id")]
    Bind(#[source] io::Error),
    /// The request could not be sent.
    #[error("cannot send a netlink request to {what}")]
    Send {
        /// What the request was meant to do.
        what: &'static str,
        source: io::Error,
    },
    /// The reply could not be read.
    #[error("cannot read the kernel's answer to the request to {what}")]
    Receive {
        /// What the request was meant to do.
        what: &'static str,
        source: io::Error,
    },
    /// The kernel replied with an error.
    #[error("the kernel refused to {what}")]
    Refused {
        /// What the request was meant to do.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel did not reply.
    #[error("the kernel did not answer the request to {what}")]
    NoAnswer {
        /// What the request was meant to do.
        what: &'static str,
    },
    /// The list changed faster than it could be read.
    #[error("could not {what}: the list kept changing")]
    Restless {
        /// The list that was requested.
        what: &'static str,
    },
}

impl NetlinkError {
    /// The error number of a kernel's refusal.
    pub(super) fn refusal(&self) -> Option<Errno> {
        match self {
            Self::Refused { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }
}

/// Messages to send together. Each has a purpose, which error messages quote.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    purposes: Vec<&'static str>,
}

impl Batch {
    /// Adds a message: its fixed header, then the attributes that `fill` writes.
    pub(super) fn push(
        &mut self,
        what: &'static str,
        kind: u16,
        flags: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.purposes.push(what);
        let start = self.bytes.len();
        let sequence = u32::try_from(self.purposes.len()).expect("a batch has far fewer than 2^32 messages");
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(header);
        pad(&mut self.bytes);
        fill(&mut Attributes { bytes: &mut self.bytes });
        let length = u32::try_from(self.bytes.len() - start).expect("a message is far smaller than 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn purpose(&self, sequence: u32) -> &'static str {
        let index = (sequence as usize).wrapping_sub(1);
        self.purposes.get(index).copied().unwrap_or("answer a request that was not made")
    }

    fn first_purpose(&self) -> &'static str {
        self.purpose(1)
    }
}

/// Writes attributes into a message.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Attributes<'_> {
    /// Writes an attribute of plain bytes.
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value);
        self.close(start);
    }

    /// Writes a text with its terminating NUL.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.close(start);
    }

    /// Writes a number in the machine's byte order, which rtnetlink uses.
    pub(super) fn native_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Writes a number in network byte order, which netfilter uses.
    pub(super) fn network_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Writes an attribute that contains attributes.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        self.nest_with_header(kind, &[], fill);
    }

    /// Writes an attribute that contains a fixed header and then attributes.
    pub(super) fn nest_with_header(&mut self, kind: u16, header: &[u8], fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.open(kind | NESTED);
        self.bytes.extend_from_slice(header);
        fill(&mut Attributes { bytes: self.bytes });
        self.close(start);
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).expect("callers keep an attribute below 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        pad(self.bytes);
    }
}

/// Netlink aligns everything to four bytes.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`, as (kind, value). Stops at the first one that exceeds the rest of the bytes.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & KIND_MASK;
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of the given kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A text attribute without its NUL. Empty if it is not UTF-8, because all our names are.
pub(super) fn text(value: &[u8]) -> &str {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).unwrap_or_default()
}

/// Reads two bytes in the machine's byte order.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Reads four bytes in the machine's byte order.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A netlink socket. It belongs to the network namespace of the thread that opened it, even if another thread uses it
/// later.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// `protocol` is `None` for rtnetlink.
    pub(super) fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let opened = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        let fd = opened.map_err(|errno| NetlinkError::Open(errno.into()))?;
        bind_to_no_process(&fd)?;
        Ok(Self { fd, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// A socket whose other end is not the kernel.
    #[cfg(feature = "fuzzing")]
    pub(super) fn over(fd: OwnedFd) -> Self {
        Self { fd, buffer: vec![0; RECEIVE_BUFFER] }
    }

    /// Requests a large send buffer for large batches. Without the permission for it, keeps the default.
    pub(super) fn with_large_send_buffer(self) -> Self {
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&self.fd, SEND_BUFFER).is_err() {
            tracing::debug!("keeping the default netlink send buffer");
        }
        self
    }

    /// Sends the batch and collects the replies. Returns the first refusal as the error. At least one message of the
    /// batch must request an acknowledgement.
    pub(super) fn transact(&mut self, batch: &Batch) -> Result<(), NetlinkError> {
        self.transact_tolerating(batch, None)
    }

    /// Like [`Self::transact`], but treats one kind of refusal as success.
    pub(super) fn transact_tolerating(&mut self, batch: &Batch, fine: Option<Errno>) -> Result<(), NetlinkError> {
        let what = batch.first_purpose();
        self.send(batch.bytes(), what)?;
        let mut refused = None;
        let mut acknowledged = false;
        while let Some(length) = self.receive(what)? {
            for (kind, _, sequence, payload) in messages(&self.buffer[..length]) {
                if kind == KIND_ERROR {
                    acknowledged = true;
                    let found = refusal(payload, batch.purpose(sequence));
                    let counts = |error: &NetlinkError| fine.is_none() || error.refusal() != fine;
                    refused = refused.or(found.filter(counts));
                }
            }
        }
        match refused {
            Some(error) => Err(error),
            None if acknowledged => Ok(()),
            None => Err(NetlinkError::NoAnswer { what }),
        }
    }

    /// Lists all objects of a kind. `parse` gets the kind and payload of each message, and those for which it returns
    /// `None` are left out. Retries if the list changed during the dump.
    pub(super) fn dump<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Attributes<'_>),
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.ask(what, kind, DUMP, header, fill, parse)
    }

    /// Gets one object, or nothing if `parse` rejects it.
    pub(super) fn get<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        header: &[u8],
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        Ok(self.ask(what, kind, ACK, header, |_| {}, parse)?.pop())
    }

    fn ask<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        flags: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Attributes<'_>),
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut batch = Batch::default();
        batch.push(what, kind, flags, header, fill);
        for attempt in 0..DUMP_ATTEMPTS {
            // Retry a few times at once. After that, wait between attempts for a pause in the changes.
            if attempt >= 8 {
                std::thread::sleep(DUMP_PAUSE);
            }
            self.send(batch.bytes(), what)?;
            if let Some(answers) = self.gather(what, &parse)? {
                return Ok(answers);
            }
        }
        Err(NetlinkError::Restless { what })
    }

    fn gather<T>(
        &mut self,
        what: &'static str,
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>, NetlinkError> {
        let mut answers = Vec::new();
        let mut interrupted = false;
        let mut done = false;
        let mut refused = None;
        while let Some(length) = self.receive(what)? {
            for (kind, flags, _, payload) in messages(&self.buffer[..length]) {
                interrupted |= flags & DUMP_INTERRUPTED != 0;
                match kind {
                    KIND_DONE => done = true,
                    // An error number of zero is an acknowledgement, which ends a reply that is not a dump.
                    KIND_ERROR => (done, refused) = (true, refusal(payload, what)),
                    _ => answers.extend(parse(kind, payload)),
                }
            }
        }
        match refused {
            Some(error) => Err(error),
            None if interrupted => Ok(None),
            None if done => Ok(Some(answers)),
            None => Err(NetlinkError::NoAnswer { what }),
        }
    }

    fn send(&self, bytes: &[u8], what: &'static str) -> Result<(), NetlinkError> {
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, bytes, SendFlags::empty()))
            .map(drop)
            .map_err(|errno| NetlinkError::Send { what, source: errno.into() })
    }

    /// Receives the next buffer of replies, or `None` if there are no more.
    fn receive(&mut self, what: &'static str) -> Result<Option<usize>, NetlinkError> {
        let buffer = &mut self.buffer[..];
        match rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT)) {
            Ok((_, length)) => Ok(Some(length.min(buffer.len()))),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(NetlinkError::Receive { what, source: errno.into() }),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Gives the socket a port id that is not a process id. By default the kernel uses the id of this process, which a
/// sandbox could then read in `/proc/net/netlink`, because that file lists all sockets of its network namespace.
fn bind_to_no_process(fd: &OwnedFd) -> Result<(), NetlinkError> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        attempts -= 1;
        let mut random = [0; 4];
        getrandom::fill(&mut random).expect("the kernel's random number generator is ready after boot");
        let port = u32::from_ne_bytes(random) | NO_PROCESS;
        match rustix::net::bind(fd, &SocketAddrNetlink::new(port, 0)) {
            Err(Errno::ADDRINUSE) if attempts > 0 => {}
            bound => return bound.map_err(|errno| NetlinkError::Bind(errno.into())),
        }
    }
}

/// The messages in a buffer, as (kind, flags, sequence, payload).
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, u16, u32, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let message = (u16_at(rest, 4)?, u16_at(rest, 6)?, u32_at(rest, 8)?, rest.get(HEADER..length)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The error in a reply, or `None` if its number is zero, which means success.
fn refusal(payload: &[u8], what: &'static str) -> Option<NetlinkError> {
    let code = u32_at(payload, 0).map_or(-1, u32::cast_signed);
    (code != 0).then(|| NetlinkError::Refused { what, source: io::Error::from_raw_os_error(code.saturating_neg()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_not_named_after_this_process() {
        let sockets = [(); 8].map(|()| Socket::open(None).expect("opening a netlink socket needs no privilege"));
        let mut ports = sockets.map(|socket| {
            let bound = rustix::net::getsockname(&socket.fd).expect("could not read the address of a bound socket");
            SocketAddrNetlink::try_from(bound).expect("not a netlink address").pid()
        });
        assert!(ports.iter().all(|port| *port >= NO_PROCESS), "{ports:?}");
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
    }

    #[test]
    fn a_message_is_framed_numbered_and_padded() {
        let mut batch = Batch::default();
        batch.push("one", 16, ACK, &[7], |attributes| attributes.text(3, "ab"));
        batch.push("two", 17, 0, &[], |_| {});
        let found: Vec<_> = messages(batch.bytes()).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].0, found[0].1, found[0].2), (16, REQUEST | ACK, 1));
        assert_eq!(found[0].3, [7, 0, 0, 0, 7, 0, 3, 0, b'a', b'b', 0, 0]);
        assert_eq!((found[1].0, found[1].2, found[1].3), (17, 2, &[][..]));
        assert_eq!((batch.purpose(2), batch.purpose(0)), ("two", "answer a request that was not made"));
    }

    #[test]
    fn what_is_nested_is_read_back() {
        let mut batch = Batch::default();
        batch.push("x", 1, 0, &[], |attributes| {
            attributes.nest(5, |inner| {
                inner.network_u32(1, 0x0102_0304);
                inner.native_u32(2, 9);
            });
            attributes.nest_with_header(6, &[1, 2, 3, 4], |inner| inner.bytes(1, &[8]));
        });
        let (_, _, _, payload) = messages(batch.bytes()).next().expect("the batch has no message");
        let five = attribute(payload, 5).expect("there");
        assert_eq!(attribute(five, 1), Some(&[1, 2, 3, 4][..]));
        assert_eq!(u32_at(attribute(five, 2).expect("there"), 0), Some(9));
        assert_eq!(attribute(&attribute(payload, 6).expect("there")[4..], 1), Some(&[8][..]));
        assert_eq!(attribute(payload, 7), None);
    }

    #[test]
    fn broken_bytes_end_the_reading() {
        for bytes in [&[][..], &[1], &[0, 0, 1, 0], &[3, 0, 1, 0], &[255, 255, 1, 0, 1], &[4]] {
            assert!(attributes(bytes).count() <= 1);
        }
        assert_eq!(messages(&[0; 16]).count(), 0);
        assert_eq!(messages(&[255; 40]).count(), 0);
        assert_eq!(text(&[0xff, 0xfe]), "");
        assert_eq!(text(b"eth0\0junk"), "eth0");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            let _ = attributes(&bytes).count();
            let _ = messages(&bytes).count();
        }
    }
}
