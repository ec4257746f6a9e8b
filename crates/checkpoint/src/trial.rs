//! A program that shows whether memory can be saved and restored: it has a child and a connection to it, and says whether
//! both went on.

use std::time::Duration;

use isopod_guest_client::guest::{Event, Guest, GuestError, Signal, StartProcess};

/// How long the program may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const READY: &str = "ready";
const WENT_ON: &str = "went on";

/// Answers `ready`, and on `SIGTERM` what its child has sent back. A host without Python has a pipe for the connection.
const PROGRAM: &str = "command -v python3 > /dev/null && exec python3 -c \"
import os, signal, socket
ours, theirs = socket.socketpair()
# The signal goes to the child too, which has to be there to answer.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    ours.close()
    theirs.sendall(theirs.recv(20))
    os._exit(0)
theirs.close()
def ask(*_):
    ours.sendall(b'went on')
    print(ours.recv(20).decode(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, ask)
print('ready', flush=True)
while True: signal.pause()\"
trap 'echo went on; exit' TERM
sleep 600 | cat > /dev/null &
echo ready
wait";

/// The program, by its pid.
#[derive(Clone, Copy, Debug)]
pub struct TrialProgram {
    pid: u32,
}

/// Why the program shows nothing, or what it shows.
#[derive(Debug, thiserror::Error)]
pub enum TrialProgramError {
    #[error("could not talk to the sandbox of the trial")]
    Guest(#[from] GuestError),
    #[error("the program of the trial printed {0:?}")]
    Printed(String),
    #[error("the program of the trial took more than {ANSWER_TIMEOUT:?}")]
    Slow,
    /// The program was restored, if at all, without what it had.
    #[error("{0}")]
    NotRestored(String),
}

impl TrialProgram {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or is not ready in time.
    pub async fn start(guest: &Guest) -> Result<Self, TrialProgramError> {
        let mut process = guest.start(StartProcess::shell(PROGRAM)).await?;
        let ready = async {
            let mut printed = Vec::new();
            while let Some(event) = process.next().await? {
                if let Event::Stdout(bytes) | Event::Stderr(bytes) = event {
                    printed.extend_from_slice(&bytes);
                }
                if printed.ends_with(b"\n") {
                    break;
                }
            }
            Ok::<_, GuestError>(String::from_utf8_lossy(&printed).into_owned())
        };
        let printed = tokio::time::timeout(ANSWER_TIMEOUT, ready).await.map_err(|_| TrialProgramError::Slow)??;
        match printed.trim() {
            READY => Ok(Self { pid: process.pid() }),
            _ => Err(TrialProgramError::Printed(printed)),
        }
    }

    /// Checks that it goes on in a copy of its sandbox: its child sends back what it gets.
    ///
    /// # Errors
    /// If it does not, or the copy's guest cannot be asked.
    pub async fn check_restored(self, guest: &Guest) -> Result<(), TrialProgramError> {
        let asked = async {
            let process = guest.connect(self.pid).await?;
            process.handle().signal(Signal::Term).await?;
            Ok::<_, GuestError>(process.collect().await?.text())
        };
        let not_restored = |what: &str| Err(TrialProgramError::NotRestored(format!("a restored program {what}")));
        match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok(text)) if text.trim().ends_with(WENT_ON) => Ok(()),
            Ok(Ok(text)) => not_restored(&format!("did not go on: it printed {text:?}")),
            Ok(Err(error)) if error.is_not_found() => not_restored("did not come back"),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => not_restored("did not go on"),
        }
    }
}
