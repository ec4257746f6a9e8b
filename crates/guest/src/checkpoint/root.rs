//! The root: a process that does nothing, in whose place the guest would be in a dumped tree of processes.
//!
//! Its program is a file, because CRIU opens it again by its path. It has no libraries, so that it works in every template.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, unlink};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::sys::{self, SpawnError, SpawnPlan};

const DIRECTORY: &str = "/run";
const PREFIX: &str = "isopod-checkpoint-root-";
/// Of the random part of its name, in hexadecimal digits.
const SUFFIX_LENGTH: usize = 16;

/// Why there is no root.
#[derive(Debug, thiserror::Error)]
pub(super) enum RootError {
    #[error("the name of the root's program is invalid")]
    Name,
    #[error("cannot write the root's program {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("cannot start the root's program {path}: {source}")]
    Start { path: String, source: io::Error },
}

/// A running root. Killed when dropped.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) pid: Pid,
    /// The host may have killed it, and the pid may be in use again.
    process: OwnedFd,
    pub(super) program: RootProgram,
}

/// The root's program. Removed when dropped.
#[derive(Debug)]
pub(super) struct RootProgram {
    /// The random part of its name.
    pub(super) suffix: String,
}

impl Root {
    pub(super) fn start() -> Result<Self, RootError> {
        let program = RootProgram::write(random_suffix())?;
        let path = program.path();
        let failed = |source| RootError::Start { path: path.clone(), source };
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.map_err(|error| failed(error.into()))?;
        let pid = spawn(&path, &null).map_err(failed)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self { pid, process, program })
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }
}

impl RootProgram {
    /// Writes the program with this random part of its name, in the place of one that is there.
    pub(super) fn write(suffix: String) -> Result<Self, RootError> {
        if suffix.len() != SUFFIX_LENGTH || !suffix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(RootError::Name);
        }
        let program = Self { suffix };
        let path = program.path();
        // Not through a link or into a file that somebody else has open.
        let _ = unlink(&path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let written = rustix::fs::open(&path, flags, Mode::RWXU).and_then(|file| rustix::io::write(file, &code::ELF));
        match written {
            Ok(length) if length == code::ELF.len() => Ok(program),
            Ok(_) => Err(RootError::Write { path, source: io::ErrorKind::WriteZero.into() }),
            Err(error) => Err(RootError::Write { path, source: error.into() }),
        }
    }

    fn path(&self) -> String {
        format!("{DIRECTORY}/{PREFIX}{}", self.suffix)
    }
}

impl Drop for RootProgram {
    fn drop(&mut self) {
        let _ = unlink(self.path());
    }
}

fn spawn(path: &str, null: &OwnedFd) -> io::Result<Pid> {
    let path = CString::new(path)?;
    let plan = SpawnPlan {
        programs: vec![path.clone()],
        argv: vec![path],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        stdio: [null.as_fd(); 3],
        extra: None,
        terminal: false,
    };
    sys::spawn(&plan).map_err(|error| match error {
        SpawnError::Fork(source)
        | SpawnError::Session(source)
        | SpawnError::Identity(source)
        | SpawnError::Chdir(source)
        | SpawnError::Exec(source) => source,
    })
}

fn random_suffix() -> String {
    let mut bytes = [0; SUFFIX_LENGTH / 2];
    // A name that is not random would do too: only root writes to the directory.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    hex::encode(bytes)
}

/// The program: `pause()` forever.
#[cfg(target_arch = "x86_64")]
mod code {
    /// Where it is loaded.
    const ADDRESS: u64 = 0x40_0000;
    const HEADERS: usize = 64 + 2 * 56;
    /// `mov eax, 34` (pause), `syscall`, `jmp` to the start.
    const CODE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    const LENGTH: usize = HEADERS + CODE.len();

    pub(super) const ELF: [u8; LENGTH] = {
        let mut elf = [0; LENGTH];
        // A 64-bit program of this processor, with the headers right after this one.
        put(&mut elf, 0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        put(&mut elf, 16, &[2, 0, 62, 0, 1]);
        put(&mut elf, 24, &(ADDRESS + HEADERS as u64).to_le_bytes());
        put(&mut elf, 32, &[64]);
        put(&mut elf, 52, &[64, 0, 56, 0, 2]);
        // The whole file is loaded, readable and executable.
        put(&mut elf, 64, &[1, 0, 0, 0, 5]);
        put(&mut elf, 80, &ADDRESS.to_le_bytes());
        put(&mut elf, 88, &ADDRESS.to_le_bytes());
        put(&mut elf, 96, &(LENGTH as u64).to_le_bytes());
        put(&mut elf, 104, &(LENGTH as u64).to_le_bytes());
        put(&mut elf, 112, &0x1000_u64.to_le_bytes());
        // The stack is not executable.
        put(&mut elf, 120, &[0x51, 0xe5, 0x74, 0x64, 6]);
        put(&mut elf, HEADERS, &CODE);
        elf
    };

    const fn put(elf: &mut [u8; LENGTH], at: usize, bytes: &[u8]) {
        let mut offset = 0;
        while offset < bytes.len() {
            elf[at + offset] = bytes[offset];
            offset += 1;
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod code {
    compile_error!("the root of a checkpoint has no program for this processor");
    pub(super) const ELF: [u8; 0] = [];
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn names_that_are_not_ours_are_refused() {
        for name in ["", "../../../etc/passwd", "0123456789abcde/", "0123456789abcdef0"] {
            assert!(matches!(RootProgram::write(name.to_owned()), Err(RootError::Name)), "{name}");
        }
    }

    #[test]
    fn the_root_sleeps_until_it_is_dropped() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = Root::start().unwrap();
        let (pid, path) = (root.pid, root.program.path());
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o7777, meta.uid()), (0o700, 0));
        let syscall = || std::fs::read_to_string(format!("/proc/{}/syscall", pid.as_raw_nonzero())).unwrap();
        for _ in 0..200 {
            if syscall().starts_with("34 ") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(syscall().starts_with("34 "), "{}", syscall());
        drop(root);
        let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
        assert!(std::fs::metadata(&path).is_err());
    }
}
