//! What goes wrong, and for how long.

use super::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server's process dies. Its machine and the sandboxes go on.
    Crash {
        server: usize,
    },
    /// The machine goes down with everything on it.
    PowerLoss {
        server: usize,
    },
    /// Messages between a server and the database are lost.
    CutFromDatabase {
        server: usize,
    },
    /// Messages between servers are lost.
    CutFromPeers {
        server: usize,
    },
    /// The process stands still, as when its machine sleeps.
    Stall {
        server: usize,
    },
    DatabaseDown,
    Cordon {
        server: usize,
    },
}

pub(super) fn draw(random: &mut Random, servers: usize) -> Fault {
    let server = random.index(servers);
    match random.between(0, 10) {
        0 => Fault::Crash { server },
        1 => Fault::PowerLoss { server },
        2..=4 => Fault::CutFromDatabase { server },
        5 => Fault::CutFromPeers { server },
        6 | 7 => Fault::Stall { server },
        8 => Fault::DatabaseDown,
        _ => Fault::Cordon { server },
    }
}
