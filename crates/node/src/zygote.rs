//! The zygote of a template: a warm interpreter outside of all sandboxes that forks itself into them.
//!
//! It has no rights, no network and nothing of any tenant: its root is the template's, its user owns the user
//! namespaces of the template's sandboxes and nothing else. It holds no state either. When it dies, sandboxes start
//! their own interpreter until there is another zygote.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::{Enter, Role, ZygoteMessage, ZygoteProgram, ZygoteSocket, zygote_pair};
use isopod_wire::{Bytes, Limits};

use crate::blank::{MakeError, Prepared, Workshop};
use crate::boot::ProcessIdentity;
use crate::disposal::{Remains, dispose};
use crate::node::random_execution_id;
use crate::template::Template;

/// Importing what data work needs takes seconds on a slow disk.
const WARM_UP: Duration = Duration::from_secs(120);
/// The user inside, whose id the zygote has in its own range: its children find the same home and the same rights.
const USER: u32 = 1000;
const PYTHON: &str = "/usr/bin/python3";
const DRIVER: &str = "/usr/lib/isopod/driver/run.py";

/// A warm interpreter.
#[derive(Debug)]
pub(crate) struct Zygote {
    workshop: Arc<Workshop>,
    remains: Remains,
    /// The host id that owns the user namespaces that it can enter.
    owner: u32,
    socket: Mutex<ZygoteSocket>,
    next: AtomicU64,
    is_alive: Arc<AtomicBool>,
}

impl Zygote {
    /// Starts one on a template and waits until it is warm. `on_end` is called once, when it is gone.
    pub(crate) fn start(
        workshop: &Arc<Workshop>,
        template: &Arc<Template>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, MakeError> {
        let prepared = workshop.prepare_zygote(random_execution_id(), template, &limits())?;
        let remains = Remains::of(&prepared.record, &workshop.home);
        Self::launch(workshop, prepared, on_end).inspect_err(|_| dispose(&workshop.host, &remains))
    }

    fn launch(
        workshop: &Arc<Workshop>,
        prepared: Prepared,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, MakeError> {
        let owner = owner_of(prepared.slot.first_id());
        let mut record = prepared.record.clone();
        let directory = prepared.directory.clone();
        let (ours, theirs) = zygote_pair().map_err(MakeError::Guest)?;
        let launched = workshop.launch_zygote(prepared, theirs.as_fd())?;
        record.init = Some(ProcessIdentity::of(launched.pid).map_err(MakeError::Guest)?);
        record.save(&directory).map_err(MakeError::Record)?;
        drop(theirs);
        let socket = ZygoteSocket::new(ours, WARM_UP).map_err(MakeError::Guest)?;
        wait_until_warm(&socket)?;
        socket.wait_patiently().map_err(MakeError::Guest)?;
        let is_alive = Arc::new(AtomicBool::new(true));
        listen(socket.try_clone().map_err(MakeError::Guest)?, Arc::clone(&is_alive), on_end)?;
        let remains = Remains::of(&record, &workshop.home);
        let (workshop, socket) = (Arc::clone(workshop), Mutex::new(socket));
        Ok(Arc::new(Self { workshop, remains, owner, socket, next: AtomicU64::new(1), is_alive }))
    }

    /// Who must own a user namespace so that this zygote can enter it.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Sends an interpreter into the sandbox of this first process, to serve the given end of a connection. Nobody
    /// waits: the guest at the other end sees when it has come.
    pub(crate) fn enter(&self, pid: u32, cgroup: &SandboxCgroup, mother: &OwnedFd) -> io::Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let entrances = cgroup.entrances().map_err(io::Error::other)?;
        let namespaces = Enter::NAMESPACES
            .iter()
            .map(|name| File::open(format!("/proc/{pid}/ns/{name}")))
            .collect::<io::Result<Vec<File>>>()?;
        let enter = Enter {
            id,
            user: USER,
            group: USER,
            home: "/home/user",
            cgroups: &entrances,
            namespaces: &namespaces,
            mother: mother.as_fd(),
        };
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).send(&enter)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // The listener's thread ends with the process.
        dispose(&self.workshop.host, &self.remains);
    }
}

/// The id of the zygote's user, in the range that its own files are mapped to.
fn owner_of(first_id: u32) -> u32 {
    first_id + USER
}

/// What it runs.
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

/// Its memory is shared by all that it forks, and counted once, here.
fn limits() -> Limits {
    Limits { memory: Bytes(2 << 30), disk: None, ..Limits::default() }
}

fn wait_until_warm(socket: &ZygoteSocket) -> Result<(), MakeError> {
    match socket.receive().map_err(MakeError::Guest)? {
        ZygoteMessage::Ready { .. } => Ok(()),
        ZygoteMessage::Failed { step, error, .. } => {
            Err(MakeError::Guest(io::Error::other(format!("{step}: {error}"))))
        }
    }
}

fn listen(
    socket: ZygoteSocket,
    is_alive: Arc<AtomicBool>,
    on_end: impl FnOnce() + Send + 'static,
) -> Result<(), MakeError> {
    let thread = std::thread::Builder::new().name("zygote".to_owned()).stack_size(256 << 10);
    let listener = thread.spawn(move || {
        let mut next_line = Instant::now();
        loop {
            match socket.receive() {
                // It may say so as often as it likes, and more than fits into a log.
                Ok(ZygoteMessage::Failed { .. }) if Instant::now() < next_line => {}
                Ok(ZygoteMessage::Failed { id, step, error }) => {
                    let (step, error) = (shortened(&step), shortened(&error));
                    tracing::warn!(id, step, error, "an interpreter could not enter its sandbox");
                    next_line = Instant::now() + Duration::from_secs(1);
                }
                Ok(ZygoteMessage::Ready { .. }) => {}
                Err(_) => break,
            }
        }
        is_alive.store(false, Ordering::Release);
        on_end();
    });
    listener.map(drop).map_err(MakeError::Guest)
}

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}
