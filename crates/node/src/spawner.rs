//! Finds or starts the spawner of a home.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use isopod_channel::{connect_in, listen_in};
use isopod_isolation::backend::{Backend, Prepared};
use isopod_isolation::launch::{
    CriuRequest, LaunchError, Launcher, MountingWorkspace, Preparation, Spawner, WorkspaceConnection, WorkspaceRequest,
};

/// How to start this program as a spawner. The listening socket is its standard input.
#[derive(Clone, Debug)]
pub struct SpawnerProgram {
    /// Usually the current executable.
    pub program: PathBuf,
    /// The arguments that make it a spawner.
    pub arguments: Vec<OsString>,
}

/// Why there is no spawner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnerError {
    #[error("could not start the spawner")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl From<SpawnerError> for LaunchError {
    fn from(error: SpawnerError) -> Self {
        match error {
            SpawnerError::Launch(error) => error,
            SpawnerError::Start(source) => Self::Step { step: "start the spawner".to_owned(), source },
        }
    }
}

/// A spawner, which is restarted if it died.
#[derive(Debug)]
pub(crate) struct SpawnerProcess {
    home: PathBuf,
    program: SpawnerProgram,
    /// Serialises the requests.
    connection: Mutex<Option<Spawner>>,
}

const SOCKET: &str = "spawner.sock";
const BACKLOG: i32 = 8;

impl SpawnerProcess {
    pub(crate) fn new(home: &Path, program: SpawnerProgram) -> Self {
        Self { home: home.to_owned(), program, connection: Mutex::new(None) }
    }

    /// Ensures that a spawner runs.
    pub(crate) fn ensure(&self) -> Result<(), SpawnerError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.is_none() {
            *connection = Some(self.connect_or_start()?);
        }
        Ok(())
    }

    fn start_launcher(&self, preparation: &Preparation<'_>) -> Result<Launcher, SpawnerError> {
        self.ask(|spawner| spawner.prepare(preparation))
    }

    fn start_mounting(&self, request: &WorkspaceRequest<'_>) -> Result<MountingWorkspace, SpawnerError> {
        self.ask(|spawner| spawner.mount_workspace(request))
    }

    fn ask<T>(&self, ask: impl Fn(&Spawner) -> Result<T, LaunchError>) -> Result<T, SpawnerError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 {
            let spawner = match connection.take() {
                Some(spawner) => spawner,
                None => self.connect_or_start()?,
            };
            match ask(&spawner) {
                // It was killed. Its sandboxes keep running, and a new spawner replaces it.
                Err(LaunchError::Channel { peer: "spawner", .. }) => {}
                other => {
                    *connection = Some(spawner);
                    return Ok(other?);
                }
            }
        }
        Err(SpawnerError::Start(io::ErrorKind::ConnectionReset.into()))
    }

    fn connect_or_start(&self) -> Result<Spawner, SpawnerError> {
        match connect_in(&self.home, SOCKET).map(Spawner::connect) {
            Ok(Ok(spawner)) => Ok(spawner),
            _ => {
                self.start().map_err(SpawnerError::Start)?;
                Ok(Spawner::connect(connect_in(&self.home, SOCKET).map_err(SpawnerError::Start)?)?)
            }
        }
    }

    fn start(&self) -> io::Result<()> {
        let listener = listen_in(&self.home, SOCKET, BACKLOG)?;
        let log = File::options().create(true).append(true).open(self.home.join("spawner.log"))?;
        let mut child = Command::new(&self.program.program)
            .arg0("isopod")
            .args(&self.program.arguments)
            .env_clear()
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .process_group(0)
            .spawn()?;
        // Reap it when it ends, so that a long-running server keeps no zombie.
        std::thread::Builder::new()
            .name("spawner-reaper".to_owned())
            .stack_size(64 << 10)
            .spawn(move || child.wait())?;
        Ok(())
    }
}

impl Backend for SpawnerProcess {
    fn prepare(&self, preparation: &Preparation<'_>) -> Result<Box<dyn Prepared>, LaunchError> {
        match self.start_launcher(preparation) {
            Ok(launcher) => Ok(Box::new(launcher)),
            Err(error) => Err(error.into()),
        }
    }

    fn mount_workspace(&self, request: &WorkspaceRequest<'_>) -> Result<WorkspaceConnection, LaunchError> {
        self.start_mounting(request).map_err(LaunchError::from)?.wait()
    }

    fn run_criu(&self, request: &CriuRequest<'_>) -> Result<bool, LaunchError> {
        self.ask(|spawner| spawner.run_criu(request)).map_err(LaunchError::from)?.wait()
    }
}
