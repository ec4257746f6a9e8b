//! What servers of a cluster say to each other about a request that one of them forwards.

/// Added to a response: another server should answer. Without a cluster, the client gets the response as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The server with this id has it.
    On { server: String },
    /// This server has no room for it at the moment.
    AnyOther,
}

/// Added to a request: if the response says [`Elsewhere::On`], the request is forwarded there, and the server that
/// answers it audits it.
#[derive(Clone, Copy, Debug)]
pub struct MayForward;

/// What a server says about its response to the server that has forwarded the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopSignal {
    /// It isn't here.
    Elsewhere,
    /// There is no room for it here.
    NoRoom,
}

impl HopSignal {
    /// Only between servers. It is removed from what sandboxes say.
    pub const HEADER: &str = "isopod-hop";

    pub fn text(self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::NoRoom => "no-room",
        }
    }

    pub fn parse(text: &[u8]) -> Option<Self> {
        [Self::Elsewhere, Self::NoRoom].into_iter().find(|signal| signal.text().as_bytes() == text)
    }

    pub fn of(elsewhere: &Elsewhere) -> Self {
        match elsewhere {
            Elsewhere::On { .. } => Self::Elsewhere,
            Elsewhere::AnyOther => Self::NoRoom,
        }
    }
}
