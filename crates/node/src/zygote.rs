//! The zygote of a template: a warm interpreter outside of all sandboxes that forks itself into them.
//!
//! Only templates that come with Isopod have one. A process that enters a user namespace briefly has every capability
//! in it, so its code must be the operator's. A template that a user built starts its interpreters inside its
//! sandboxes.
//!
//! A zygote has no privileges, no network and no data of any tenant. Its root is the template's, and its user may enter
//! the template's sandboxes and nothing else. It holds no state either: if it dies, sandboxes start their own
//! interpreters until there is another zygote.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::{
    Admission, AdmissionError, Enter, Expected, Role, ZygoteMessage, ZygoteProgram, ZygoteSocket, namespaces_of,
    socket_number,
};
use isopod_wire::{Bytes, Limits};

use crate::disposal::{Remains, dispose};
use crate::host::Host;
use crate::slot::Slot;

/// Importing the data packages takes seconds on a slow disk.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a fork may take for each half of its way into a sandbox, on a host that is busy with a hundred of them.
const ENTER_TIMEOUT: Duration = Duration::from_secs(20);
/// The disk limit of its root besides the template: caches of what it imports.
const DISK: Bytes = Bytes(256 << 20);
/// The zygote's uid in its own id range.
const USER: u32 = 1000;
/// The user that code runs as in a sandbox, as in E2B. On the host it is the first id of the sandbox's range, which has
/// no privileges.
const ROOT: u32 = 0;
const PYTHON: &str = "/usr/bin/python3";
const DRIVER: &str = "/usr/lib/isopod/driver/run.py";

/// A warm interpreter.
#[derive(Debug)]
pub(crate) struct Zygote {
    host: Arc<Host>,
    remains: Remains,
    slot: Slot,
    /// The host id that owns the user namespaces that it can enter.
    owner: u32,
    socket: Mutex<ZygoteSocket>,
    is_alive: Arc<AtomicBool>,
}

impl Zygote {
    /// Connects to the program behind this socket, in the given slot, and waits until it is warm. Calls `on_end` once,
    /// when it is gone.
    pub(crate) fn connect(
        host: &Arc<Host>,
        remains: Remains,
        slot: Slot,
        socket: OwnedFd,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let socket = ZygoteSocket::new(socket, WARM_UP_TIMEOUT)?;
        wait_until_warm(&socket)?;
        socket.wait_patiently()?;
        let is_alive = Arc::new(AtomicBool::new(true));
        listen(socket.try_clone()?, Arc::clone(&is_alive), on_end)?;
        let (host, owner, socket) = (Arc::clone(host), owner_of(slot.first_id()), Mutex::new(socket));
        Ok(Arc::new(Self { host, remains, slot, owner, socket, is_alive }))
    }

    /// Its slot, which stays claimed as long as sandboxes name it as their owner.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// The owner of the user namespaces that this zygote can enter.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Sends an interpreter towards the sandbox of this first process, to serve the given end of a connection. It waits
    /// outside until [`Entering::let_in`].
    pub(crate) fn enter(&self, pid: u32, forkserver: &OwnedFd) -> io::Result<Entering> {
        let namespaces = namespaces_of(pid)?;
        let (admission, theirs) = Admission::new(ENTER_TIMEOUT)?;
        let enter = Enter {
            user: ROOT,
            group: ROOT,
            home: "/home/user",
            namespaces: &namespaces,
            forkserver: forkserver.as_fd(),
            admission: theirs.as_fd(),
        };
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).send(&enter)?;
        Ok(Entering { admission, owner: self.owner, init: pid, connection: socket_number(forkserver)? })
    }
}

/// An interpreter that is entering a sandbox. It ends if this is dropped before it has arrived.
#[derive(Debug)]
pub(crate) struct Entering {
    admission: Admission,
    owner: u32,
    init: u32,
    /// The inode number of the guest's connection.
    connection: u64,
}

impl Entering {
    /// Moves it into the sandbox's cgroups and lets it enter the namespaces. On an error, the sandbox is unchanged.
    pub(crate) fn let_in(&self, cgroup: &SandboxCgroup) -> Result<(), AdmissionError> {
        self.admission.let_in(self.owner, cgroup)
    }

    /// Waits until it has dropped all privileges but those of the sandbox's root, checks that from outside and lets it
    /// serve. On an error, the sandbox must be removed, because a process with too many privileges may be in it.
    pub(crate) fn check(&self, first_id: u32) -> Result<(), AdmissionError> {
        let id = first_id + ROOT;
        self.admission.check_and_let_serve(&Expected { uid: id, gid: id, init: self.init, connection: self.connection })
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // The thread that listens ends with the process.
        dispose(&self.host, &self.remains);
    }
}

/// The id of the zygote's user, in the id range of its slot.
fn owner_of(first_id: u32) -> u32 {
    first_id + USER
}

/// The program that it runs.
pub(crate) fn role(first_id: u32) -> Role {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    Role::Zygote(ZygoteProgram {
        id: owner_of(first_id),
        program: PYTHON.to_owned(),
        arguments: texts(&[PYTHON, "-s", DRIVER, "zygote", "--fd", "3", "--warm", "full"]),
        environment: texts(&[
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/home/user",
            "LANG=C.UTF-8",
        ]),
    })
}

/// Its memory is shared by everything that it forks, and counted once, here.
pub(crate) fn limits() -> Limits {
    Limits { memory: Bytes(2 << 30), disk: Some(DISK), ..Limits::default() }
}

fn wait_until_warm(socket: &ZygoteSocket) -> io::Result<()> {
    match socket.receive()? {
        ZygoteMessage::Ready { .. } => Ok(()),
        ZygoteMessage::Failed { step, error } => Err(io::Error::other(format!("{step}: {error}"))),
    }
}

fn listen(socket: ZygoteSocket, is_alive: Arc<AtomicBool>, on_end: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("zygote".to_owned()).stack_size(256 << 10);
    let listener = thread.spawn(move || {
        let mut next_line = Instant::now();
        loop {
            match socket.receive() {
                // It may send any number of messages, more than a log should hold.
                Ok(ZygoteMessage::Failed { .. }) if Instant::now() < next_line => {}
                Ok(ZygoteMessage::Failed { step, error }) => {
                    let (step, error) = (shortened(&step), shortened(&error));
                    tracing::warn!(step, error, "the zygote failed to carry out a request");
                    next_line = Instant::now() + Duration::from_secs(1);
                }
                Ok(ZygoteMessage::Ready { .. }) => {}
                Err(_) => break,
            }
        }
        is_alive.store(false, Ordering::Release);
        on_end();
    });
    listener.map(drop)
}

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}
