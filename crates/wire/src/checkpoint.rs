//! How the host has a guest take part in a checkpoint: the dump of a sandbox's processes, and their restore below the guest of
//! another sandbox.
//!
//! CRIU dumps and restores the processes, but never the guest. Each process has descriptors that lead to its guest: standard
//! streams, a terminal, a kernel's stream. A [`Connection`] names such a descriptor as CRIU does. At a restore the new guest
//! makes the same connections again and keeps both ends, and the host gives CRIU the processes' ends.
//!
//! | request | reply | when |
//! |---|---|---|
//! | `POST` [`HOLD_PATH`] | [`Held`] | first |
//! | `POST` [`STATE_PATH`] | JSON that only guests read, at most [`MAX_STATE`] bytes | once all processes are stopped |
//! | `GET` [`FILES_PATH`] | the files that are in memory | once all processes are stopped |
//! | `POST` [`RELEASE_PATH`] | 204 | last, if the sandbox goes on |
//! | `PUT` [`RESTORE_FILES_PATH`] | 204 | in another sandbox, after `/init` and before anything else |
//! | `POST` [`RESTORE_PATH`] with the state | [`Restoring`] | then |
//! | `POST` [`RESTORE_FINISH_PATH`] | 204 | once the processes are restored and their root is killed |
//! | `POST` [`IDENTITY_PATH`] | 204 | last, in a copy, which may also be one without processes |
//!
//! A request at the wrong time gets a 409. A hold that nobody releases ends after [`MAX_HOLD`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The guest starts nothing new and sends nothing to processes from here on.
pub const HOLD_PATH: &str = "/checkpoint/hold";
/// What the guest knows about its processes.
pub const STATE_PATH: &str = "/checkpoint/state";
/// The files in `/tmp`, `/run` and `/dev/shm`, as far as they are in memory.
pub const FILES_PATH: &str = "/checkpoint/files";
/// The guest goes on.
pub const RELEASE_PATH: &str = "/checkpoint/release";
/// Takes what [`FILES_PATH`] returned.
pub const RESTORE_FILES_PATH: &str = "/restore/files";
/// Takes what [`STATE_PATH`] returned.
pub const RESTORE_PATH: &str = "/restore";
/// The processes are there. With `?copy=true`, the sandbox that they were saved from goes on too.
pub const RESTORE_FINISH_PATH: &str = "/restore/finish";
/// Gives a copy the host name in `?name=` and a machine id of its own.
pub const IDENTITY_PATH: &str = "/restore/identity";

/// The longest state.
pub const MAX_STATE: usize = 64 << 20;
/// How long a hold lasts if nobody releases it.
pub const MAX_HOLD: Duration = Duration::from_secs(60);

/// What a process has open that leads to its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Connection {
    Pipe {
        /// Both ends have the same.
        inode: u64,
    },
    Socket {
        /// That of the process's end.
        inode: u64,
    },
    Terminal {
        /// `st_rdev` of the process's end.
        device: u64,
        /// `st_dev` of the process's end.
        file_system: u64,
    },
}

/// The reply to [`HOLD_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The pid, in the sandbox, of the process that takes the place of the guest as the root of the dumped tree. It does
    /// nothing.
    pub root: u32,
    /// All connections between the guest and processes.
    pub connections: Vec<Connection>,
}

/// The reply to [`RESTORE_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoring {
    pub connections: Vec<RestoredEnd>,
}

/// The process's end of a connection that was made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredEnd {
    /// As it was named when it was dumped.
    pub connection: Connection,
    /// The number of the new descriptor in the guest's table. The guest closes it when the restore is finished.
    pub fd: i32,
}

/// What a sandbox is to the one whose processes are restored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredAs {
    /// The same.
    Itself,
    /// Another one. The source may go on.
    Copy,
    /// One of many that start from it, with the log that it had.
    Start,
}

impl RestoredAs {
    /// Whether it is another one.
    pub fn is_copy(self) -> bool {
        self != Self::Itself
    }

    /// Whether the log comes along.
    pub fn has_log(self) -> bool {
        self == Self::Start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_written_as_they_always_were() {
        let all = vec![
            Connection::Pipe { inode: 7 },
            Connection::Socket { inode: 8 },
            Connection::Terminal { device: 34816, file_system: 21 },
        ];
        let held = Held { root: 9, connections: all };
        let json = serde_json::to_string(&held).unwrap();
        let expected = r#"{"root":9,"connections":[{"kind":"pipe","inode":7},{"kind":"socket","inode":8},{"kind":"terminal","device":34816,"file_system":21}]}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Held>(&json).unwrap(), held);
    }
}
