//! DNS messages (RFC 1035), as far as a resolver must read them that answers for its own names and forwards the rest.

use std::net::Ipv4Addr;

/// Names that we answer for, and what we answer.
#[derive(Debug)]
pub(super) struct Zone {
    pub(super) domains: Vec<String>,
    pub(super) address: Ipv4Addr,
}

/// What to do with a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer is known.
    Answer(Vec<u8>),
    /// The host's resolvers are to be asked.
    Forward,
    /// It is no query; nothing is answered.
    Drop,
}

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;
/// The server may move to another address with its next start.
const TTL: u32 = 5;
const IS_RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 0x01;
const AUTHORITATIVE: u8 = 0x04;
const RECURSION_AVAILABLE: u8 = 0x80;
const SERVER_FAILURE: u8 = 2;

impl Zone {
    pub(super) fn decide(&self, query: &[u8]) -> Verdict {
        if query.len() < HEADER || query[2] & IS_RESPONSE != 0 {
            return Verdict::Drop;
        }
        match Question::parse(query) {
            Some(question) if self.holds(&question.name) => Verdict::Answer(self.answer(query, &question)),
            // What we cannot read, others may.
            _ => Verdict::Forward,
        }
    }

    fn holds(&self, name: &str) -> bool {
        let is_below = |domain: &String| {
            name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.domains.iter().any(is_below)
    }

    /// The address for those who ask for one of IPv4. For all else the name exists without it: an answer that the name does
    /// not exist would count for IPv4 as well.
    fn answer(&self, query: &[u8], question: &Question) -> Vec<u8> {
        let has_address = question.kind == TYPE_A && question.class == CLASS_IN;
        let mut answer = head(query, AUTHORITATIVE, 0, [1, u16::from(has_address)]);
        answer.extend_from_slice(&query[HEADER..question.end]);
        if has_address {
            // The name is the question's.
            answer.extend_from_slice(&[0xc0, HEADER as u8]);
            answer.extend_from_slice(&TYPE_A.to_be_bytes());
            answer.extend_from_slice(&CLASS_IN.to_be_bytes());
            answer.extend_from_slice(&TTL.to_be_bytes());
            answer.extend_from_slice(&4_u16.to_be_bytes());
            answer.extend_from_slice(&self.address.octets());
        }
        answer
    }
}

/// That nobody could be asked: the program tries again or says so, instead of waiting for its own patience to end.
pub(super) fn failure(query: &[u8]) -> Option<Vec<u8>> {
    let question = Question::parse(query)?;
    let mut answer = head(query, 0, SERVER_FAILURE, [1, 0]);
    answer.extend_from_slice(&query[HEADER..question.end]);
    Some(answer)
}

/// Whether this is an answer to that query.
pub(super) fn answers(reply: &[u8], query: &[u8]) -> bool {
    if reply.len() < HEADER || reply[..2] != query[..2] || reply[2] & IS_RESPONSE == 0 {
        return false;
    }
    match (Question::parse(reply), Question::parse(query)) {
        (Some(reply), Some(query)) => (reply.name, reply.kind, reply.class) == (query.name, query.kind, query.class),
        // A refusal may leave the question out.
        _ => true,
    }
}

fn head(query: &[u8], flags: u8, code: u8, [questions, answers]: [u16; 2]) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(&query[..2]);
    head.push(IS_RESPONSE | flags | query[2] & (OPCODE | RECURSION_DESIRED));
    head.push(RECURSION_AVAILABLE | code);
    for count in [questions, answers, 0, 0] {
        head.extend_from_slice(&count.to_be_bytes());
    }
    head
}

#[derive(Debug)]
struct Question {
    /// In lower case, without the last dot.
    name: String,
    kind: u16,
    class: u16,
    /// Where it ends in the message.
    end: usize,
}

impl Question {
    /// The only question of an ordinary message. None for everything else.
    fn parse(message: &[u8]) -> Option<Self> {
        let is_ordinary = message.get(2)? & OPCODE == 0;
        if !is_ordinary || message.get(4..6)? != [0, 1] {
            return None;
        }
        let mut labels: Vec<String> = Vec::new();
        let mut at = HEADER;
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            match length {
                0 => break,
                // A pointer: nothing stands before the first question that it could point to.
                64.. => return None,
                _ => labels.push(std::str::from_utf8(message.get(at..at + length)?).ok()?.to_ascii_lowercase()),
            }
            at += length;
        }
        let number = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
        let name = labels.join(".");
        // A dot within a label is part of the label, and such a name is none of ours.
        if labels.iter().any(|label| label.contains('.')) || name.len() > 253 {
            return None;
        }
        Some(Self { name, kind: number(at)?, class: number(at + 2)?, end: at + 4 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AAAA: u16 = 28;

    fn zone() -> Zone {
        Zone { domains: vec!["e2b.app".to_owned()], address: Ipv4Addr::new(127, 80, 1, 2) }
    }

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            query.push(label.len() as u8);
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        query.extend_from_slice(&kind.to_be_bytes());
        query.extend_from_slice(&CLASS_IN.to_be_bytes());
        // An OPT record, as every resolver of today sends.
        query.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        query
    }

    fn answer(name: &str, kind: u16) -> Vec<u8> {
        match zone().decide(&query(name, kind)) {
            Verdict::Answer(answer) => answer,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn names_of_the_domain_have_the_address_and_nothing_else() {
        for name in ["e2b.app", "api.e2b.app", "49983-iabc.E2B.app", "a.b.c.e2b.app"] {
            let found = answer(name, TYPE_A);
            assert_eq!(found[..8], [0xab, 0xcd, 0x85, 0x80, 0, 1, 0, 1], "{name}");
            assert!(found.ends_with(&[0, 4, 127, 80, 1, 2]), "{name}");
            for kind in [AAAA, 65, 255] {
                let none = answer(name, kind);
                assert_eq!(none[..8], [0xab, 0xcd, 0x85, 0x80, 0, 1, 0, 0], "{name}: not even an error");
                assert!(answers(&none, &query(name, kind)));
            }
        }
    }

    #[test]
    fn all_other_names_are_forwarded() {
        for name in ["", "app", "xe2b.app", "e2b.app.evil.com", "example.com", "localhost"] {
            assert_eq!(zone().decide(&query(name, TYPE_A)), Verdict::Forward, "{name}");
        }
        let mut dotted = query("x.app", TYPE_A);
        dotted.splice(HEADER..HEADER + 7, [7, b'e', b'2', b'b', b'.', b'a', b'p', b'p', 0]);
        assert_eq!(zone().decide(&dotted), Verdict::Forward);
    }

    #[test]
    fn what_is_no_query_is_dropped_and_what_is_cut_off_is_not_read() {
        let whole = query("api.e2b.app", TYPE_A);
        for length in 0..whole.len() {
            let cut = &whole[..length];
            match zone().decide(cut) {
                Verdict::Drop => assert!(length < HEADER),
                Verdict::Forward => assert!(failure(cut).is_none()),
                Verdict::Answer(_) => assert!(length >= HEADER + 17),
            }
        }
        let mut reply = whole.clone();
        reply[2] |= IS_RESPONSE;
        assert_eq!(zone().decide(&reply), Verdict::Drop, "two resolvers must not answer each other");
        let mut pointer = whole.clone();
        pointer[HEADER] = 0xc0;
        assert_eq!(zone().decide(&pointer), Verdict::Forward);
    }

    #[test]
    fn only_the_answer_to_the_query_counts() {
        let asked = query("example.com", TYPE_A);
        let refused = failure(&asked).unwrap();
        assert_eq!(refused[3] & 0x0f, SERVER_FAILURE);
        assert!(answers(&refused, &asked));
        assert!(!answers(&asked, &asked), "it is a query itself");
        assert!(!answers(&failure(&query("example.org", TYPE_A)).unwrap(), &asked));
        assert!(!answers(&refused[..5], &asked));
        let mut other = refused.clone();
        other[0] ^= 1;
        assert!(!answers(&other, &asked));
    }
}
