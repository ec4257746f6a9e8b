//! Changes to CRIU's images between a dump and a restore.
//!
//! An image is a sequence of protobuf messages, each after its length. Only a few fields are changed, by number; all others
//! are kept as they are, whether they are known or not.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

/// Of `task_kobj_ids_entry`.
const USER_NAMESPACE: u64 = 10;
const TIME_NAMESPACE: u64 = 12;
/// Of `inventory_entry`.
const ROOT_IDS: u64 = 3;
/// Of `file_entry`.
const REGULAR_FILE: u64 = 3;
const INET_SOCKET: u64 = 4;
/// Of `reg_file_entry`.
const FILE_NAME: u64 = 6;
const FILE_IS_EXTERNAL: u64 = 9;
/// Of `inet_sk_entry`.
const FAMILY: u64 = 3;
const PROTOCOL: u64 = 5;
const STATE: u64 = 6;
const SOURCE_PORT: u64 = 7;
const DESTINATION_PORT: u64 = 8;
const SOURCE_ADDRESS: u64 = 11;
const DESTINATION_ADDRESS: u64 = 12;

const TCP: u64 = 6;
const TCP_CLOSE: u64 = 7;
const TCP_LISTEN: u64 = 10;
const AF_INET: u64 = 2;

/// The inventory has one magic number, other images have two.
const INVENTORY_HEAD: usize = 4;
const HEAD: usize = 8;

/// Says that CRIU was in the user and time namespaces of the dumped processes, so that a restore makes no new ones.
pub(crate) fn enter_namespaces(images: &Path, root: u32) -> io::Result<()> {
    let ids = read_image(&images.join(format!("ids-{root}.img")), HEAD)?;
    let ids = ids.messages.first().ok_or_else(damaged)?;
    let path = images.join("inventory.img");
    let mut inventory = read_image(&path, INVENTORY_HEAD)?;
    let entry = inventory.messages.first_mut().ok_or_else(damaged)?;
    let mut root_ids = entry.message(ROOT_IDS)?.ok_or_else(damaged)?;
    for namespace in [USER_NAMESPACE, TIME_NAMESPACE] {
        if let Some(id) = ids.number(namespace) {
            root_ids.set_number(namespace, id);
        }
    }
    entry.set_message(ROOT_IDS, &root_ids);
    inventory.write(&path)
}

/// Gives external files their paths back, by the names under which CRIU knows them, and closes connections to other hosts:
/// a restored sandbox has another address.
pub(crate) fn adapt_files(images: &Path, external: &BTreeMap<String, String>) -> io::Result<()> {
    let path = images.join("files.img");
    let mut files = read_image(&path, HEAD)?;
    adapt(&mut files, external)?;
    files.write(&path)
}

fn adapt(files: &mut Image, external: &BTreeMap<String, String>) -> io::Result<()> {
    for entry in &mut files.messages {
        if let Some(mut file) = entry.message(REGULAR_FILE)?
            && let Some(path) = file.text(FILE_NAME).and_then(|name| external.get(&name))
        {
            file.set_text(FILE_NAME, path);
            file.remove(FILE_IS_EXTERNAL);
            entry.set_message(REGULAR_FILE, &file);
        }
        if let Some(mut socket) = entry.message(INET_SOCKET)?
            && is_connected_outside(&socket)?
        {
            close(&mut socket);
            entry.set_message(INET_SOCKET, &socket);
        }
    }
    Ok(())
}

fn is_connected_outside(socket: &Message) -> io::Result<bool> {
    let state = socket.number(STATE).unwrap_or(TCP_CLOSE);
    let is_connected = socket.number(PROTOCOL) == Some(TCP) && state != TCP_CLOSE && state != TCP_LISTEN;
    Ok(is_connected && !is_loopback(socket.number(FAMILY) == Some(AF_INET), &socket.numbers(DESTINATION_ADDRESS)?))
}

/// CRIU keeps the words of an address in network byte order.
fn is_loopback(is_v4: bool, words: &[u64]) -> bool {
    let bytes: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
    match <[u8; 4]>::try_from(bytes.get(..4).unwrap_or_default()) {
        Ok(v4) if is_v4 => Ipv4Addr::from(v4).is_loopback(),
        _ => match <[u8; 16]>::try_from(bytes.get(..16).unwrap_or_default()).map(std::net::Ipv6Addr::from) {
            Ok(v6) => v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
            Err(_) => false,
        },
    }
}

fn close(socket: &mut Message) {
    socket.set_number(STATE, TCP_CLOSE);
    socket.set_number(SOURCE_PORT, 0);
    socket.set_number(DESTINATION_PORT, 0);
    for address in [SOURCE_ADDRESS, DESTINATION_ADDRESS] {
        socket.zero(address);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Image {
    head: Vec<u8>,
    messages: Vec<Message>,
}

fn read_image(path: &Path, head: usize) -> io::Result<Image> {
    Image::parse(&fs::read(path)?, head)
}

impl Image {
    fn parse(bytes: &[u8], head: usize) -> io::Result<Self> {
        let (head, mut rest) = bytes.split_at_checked(head).ok_or_else(damaged)?;
        let mut messages = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (message, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(damaged)?;
            messages.push(Message::parse(message)?);
            rest = after;
        }
        Ok(Self { head: head.to_vec(), messages })
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = self.head.clone();
        for message in &self.messages {
            let message = message.encode();
            bytes.extend(u32::try_from(message.len()).map_err(|_| damaged())?.to_le_bytes());
            bytes.extend(message);
        }
        Ok(bytes)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.encode()?)
    }
}

/// Changes an image as before a restore, and checks what comes out.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_changes(data: &[u8]) {
    let Ok(mut image) = Image::parse(data, HEAD) else { return };
    let written = image.encode().expect("it was read from an image");
    assert_eq!(Image::parse(&written, HEAD).expect("it was written from an image"), image);
    let external = BTreeMap::from([("file[1f:2a]".to_owned(), "/usr/lib/x.so".to_owned())]);
    if adapt(&mut image, &external).is_err() {
        return;
    }
    for entry in &image.messages {
        let socket = entry.message(INET_SOCKET).expect("it could be read before");
        assert!(socket.is_none_or(|socket| !is_connected_outside(&socket).expect("it could be read before")));
    }
    let once = image.encode().expect("changes add less than the length of a path");
    adapt(&mut image, &external).expect("it was changed before");
    assert_eq!(image.encode().expect("nothing is added"), once, "a second change finds nothing to do");
}

/// The fields of a protobuf message, in their order.
#[derive(Debug, PartialEq, Eq)]
struct Message(Vec<(u64, Value)>);

#[derive(Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Eight([u8; 8]),
    Bytes(Vec<u8>),
    Four([u8; 4]),
}

impl Message {
    fn parse(mut bytes: &[u8]) -> io::Result<Self> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = take_varint(&mut bytes)?;
            let value = match key & 7 {
                0 => Value::Number(take_varint(&mut bytes)?),
                1 => Value::Eight(take_array(&mut bytes)?),
                2 => {
                    let length = usize::try_from(take_varint(&mut bytes)?).map_err(|_| damaged())?;
                    let (value, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                5 => Value::Four(take_array(&mut bytes)?),
                _ => return Err(damaged()),
            };
            fields.push((key >> 3, value));
        }
        Ok(Self(fields))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in &self.0 {
            let mut begin = |kind: u64| put_varint(&mut bytes, number << 3 | kind);
            match value {
                Value::Number(value) => {
                    begin(0);
                    put_varint(&mut bytes, *value);
                }
                Value::Eight(value) => {
                    begin(1);
                    bytes.extend(value);
                }
                Value::Bytes(value) => {
                    begin(2);
                    put_varint(&mut bytes, value.len() as u64);
                    bytes.extend(value);
                }
                Value::Four(value) => {
                    begin(5);
                    bytes.extend(value);
                }
            }
        }
        bytes
    }

    fn field(&self, number: u64) -> Option<&Value> {
        self.0.iter().find(|(found, _)| *found == number).map(|(_, value)| value)
    }

    fn number(&self, number: u64) -> Option<u64> {
        match self.field(number)? {
            Value::Number(value) => Some(*value),
            _ => None,
        }
    }

    /// The values of a repeated field, packed or not.
    fn numbers(&self, number: u64) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for (_, value) in self.0.iter().filter(|(found, _)| *found == number) {
            match value {
                Value::Number(value) => numbers.push(*value),
                Value::Bytes(packed) => {
                    let mut packed = packed.as_slice();
                    while !packed.is_empty() {
                        numbers.push(take_varint(&mut packed)?);
                    }
                }
                Value::Four(_) | Value::Eight(_) => return Err(damaged()),
            }
        }
        Ok(numbers)
    }

    fn text(&self, number: u64) -> Option<String> {
        match self.field(number)? {
            Value::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        }
    }

    fn message(&self, number: u64) -> io::Result<Option<Self>> {
        match self.field(number) {
            Some(Value::Bytes(bytes)) => Self::parse(bytes).map(Some),
            Some(_) => Err(damaged()),
            None => Ok(None),
        }
    }

    fn set(&mut self, number: u64, value: Value) {
        match self.0.iter_mut().find(|(found, _)| *found == number) {
            Some((_, found)) => *found = value,
            None => self.0.push((number, value)),
        }
    }

    fn set_number(&mut self, number: u64, value: u64) {
        self.set(number, Value::Number(value));
    }

    fn set_text(&mut self, number: u64, value: &str) {
        self.set(number, Value::Bytes(value.as_bytes().to_vec()));
    }

    fn set_message(&mut self, number: u64, value: &Self) {
        self.set(number, Value::Bytes(value.encode()));
    }

    /// Replaces all numbers of a repeated field by zero.
    fn zero(&mut self, number: u64) {
        for (_, value) in self.0.iter_mut().filter(|(found, _)| *found == number) {
            match value {
                Value::Number(value) => *value = 0,
                // Each number is at least one byte, and its last byte has no high bit.
                Value::Bytes(packed) => *packed = packed.iter().filter(|byte| **byte < 128).map(|_| 0).collect(),
                Value::Four(_) | Value::Eight(_) => {}
            }
        }
    }

    fn remove(&mut self, number: u64) {
        self.0.retain(|(found, _)| *found != number);
    }
}

fn take_varint(bytes: &mut &[u8]) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or_else(damaged)?;
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            return Ok(value);
        }
    }
    Err(damaged())
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> io::Result<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    *bytes = rest;
    Ok(*array)
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an image of the checkpoint is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(family: u64, state: u64, destination: &[u64]) -> Message {
        let mut fields = vec![(FAMILY, Value::Number(family)), (PROTOCOL, Value::Number(TCP))];
        fields.extend([(STATE, Value::Number(state)), (SOURCE_PORT, Value::Number(5000))]);
        fields.extend(destination.iter().map(|word| (DESTINATION_ADDRESS, Value::Number(*word))));
        Message(fields)
    }

    fn word(bytes: [u8; 4]) -> u64 {
        u32::from_le_bytes(bytes).into()
    }

    #[test]
    fn what_is_not_changed_is_written_as_it_was_read() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let message = Message::parse(&bytes).unwrap();
        assert_eq!((message.number(1), message.text(2).as_deref()), (Some(150), Some("hi")));
        assert_eq!(message.encode(), bytes);
        for length in 0..bytes.len() {
            // A cut message is an error or ends between two fields.
            let _ = Message::parse(&bytes[..length]);
        }
        assert!(Message::parse(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(Message::parse(&[0xff; 11]).is_err());
        assert!(Message::parse(&[0x0b]).is_err());
    }

    #[test]
    fn only_connections_to_other_hosts_are_closed() {
        let established = 1;
        let loopback_v6 = [0, 0, 0, word([0, 0, 0, 1])];
        let mapped_loopback = [0, 0, word([0, 0, 255, 255]), word([127, 0, 0, 1])];
        let outside_v6 = [word([0x20, 1, 0, 0]), 0, 0, word([0, 0, 0, 1])];
        for (socket, outside) in [
            (socket(2, established, &[word([127, 0, 0, 1])]), false),
            (socket(2, established, &[word([10, 0, 0, 1])]), true),
            (socket(2, TCP_LISTEN, &[0]), false),
            (socket(2, TCP_CLOSE, &[word([10, 0, 0, 1])]), false),
            (socket(10, established, &loopback_v6), false),
            (socket(10, established, &mapped_loopback), false),
            (socket(10, established, &outside_v6), true),
            (socket(2, established, &[]), true),
        ] {
            assert_eq!(is_connected_outside(&socket).unwrap(), outside, "{socket:?}");
        }
        let mut outside = socket(2, established, &[word([10, 0, 0, 1])]);
        close(&mut outside);
        assert_eq!(outside, {
            let mut closed = socket(2, TCP_CLOSE, &[0]);
            closed.set_number(SOURCE_PORT, 0);
            closed.set_number(DESTINATION_PORT, 0);
            closed
        });
    }

    #[test]
    fn a_dump_is_made_to_look_as_if_criu_was_inside() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, head: usize, message: &Message| {
            let image = Image { head: vec![7; head], messages: vec![Message::parse(&message.encode()).unwrap()] };
            image.write(&place.path().join(name)).unwrap();
        };
        let ids = Message(vec![
            (9, Value::Number(6)),
            (USER_NAMESPACE, Value::Number(10)),
            (TIME_NAMESPACE, Value::Number(9)),
        ]);
        let own = Message(vec![
            (9, Value::Number(6)),
            (USER_NAMESPACE, Value::Number(7)),
            (TIME_NAMESPACE, Value::Number(5)),
        ]);
        write("ids-4.img", HEAD, &ids);
        write(
            "inventory.img",
            INVENTORY_HEAD,
            &Message(vec![(1, Value::Number(2)), (ROOT_IDS, Value::Bytes(own.encode()))]),
        );
        enter_namespaces(place.path(), 4).unwrap();
        let inventory = read_image(&place.path().join("inventory.img"), INVENTORY_HEAD).unwrap();
        assert_eq!(inventory.messages[0].message(ROOT_IDS).unwrap(), Some(ids));
        assert_eq!((inventory.head, inventory.messages[0].number(1)), (vec![7; INVENTORY_HEAD], Some(2)));
    }

    #[test]
    fn external_files_get_their_paths_back() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, external: bool| {
            let mut file = Message(vec![(FILE_NAME, Value::Bytes(name.into()))]);
            if external {
                file.set_number(FILE_IS_EXTERNAL, 1);
            }
            Message(vec![(2, Value::Number(1)), (REGULAR_FILE, Value::Bytes(file.encode()))])
        };
        let messages = vec![file("file[1f:2a]", true), file("/other", false)];
        Image { head: vec![0; HEAD], messages }.write(&place.path().join("files.img")).unwrap();
        let external = BTreeMap::from([("file[1f:2a]".to_owned(), "/usr/lib/x.so".to_owned())]);
        adapt_files(place.path(), &external).unwrap();
        let files = read_image(&place.path().join("files.img"), HEAD).unwrap();
        assert_eq!(files.messages, [file("/usr/lib/x.so", false), file("/other", false)]);
    }
}
