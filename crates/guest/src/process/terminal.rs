//! Terminals of processes: how they are opened, and how a checkpoint keeps them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use isopod_wire::checkpoint::Connection;
use isopod_wire::rpc::process::PTY;
use rustix::fs::Mode;
use rustix::pty::OpenptFlags;
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize,
};
use serde::{Deserialize, Serialize};

use crate::connection;

/// How many terminals are opened at most to get one with a certain number.
const MAX_ATTEMPTS: usize = 64;

/// The characters with a meaning, in the order in which they are saved.
const SPECIAL_CODES: [SpecialCodeIndex; 17] = [
    SpecialCodeIndex::VINTR,
    SpecialCodeIndex::VQUIT,
    SpecialCodeIndex::VERASE,
    SpecialCodeIndex::VKILL,
    SpecialCodeIndex::VEOF,
    SpecialCodeIndex::VTIME,
    SpecialCodeIndex::VMIN,
    SpecialCodeIndex::VSWTC,
    SpecialCodeIndex::VSTART,
    SpecialCodeIndex::VSTOP,
    SpecialCodeIndex::VSUSP,
    SpecialCodeIndex::VEOL,
    SpecialCodeIndex::VREPRINT,
    SpecialCodeIndex::VDISCARD,
    SpecialCodeIndex::VWERASE,
    SpecialCodeIndex::VLNEXT,
    SpecialCodeIndex::VEOL2,
];

/// Both ends of a new terminal.
#[derive(Debug)]
pub(super) struct TerminalEnds {
    pub(super) master: OwnedFd,
    pub(super) slave: Arc<OwnedFd>,
    pub(super) name: TerminalName,
}

/// What identifies a terminal of a live process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalName {
    pub(super) connection: Connection,
    /// The user it belongs to.
    pub(super) owner: u32,
}

/// A terminal as a checkpoint holds it. What was typed and not yet read is not part of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedTerminal {
    pub(super) connection: Connection,
    owner: u32,
    rows: u16,
    columns: u16,
    modes: SavedModes,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedModes {
    input: u32,
    output: u32,
    control: u32,
    local: u32,
    /// In the order of [`SPECIAL_CODES`].
    special_codes: Vec<u8>,
}

impl TerminalEnds {
    pub(super) fn open(size: Winsize, owner: u32) -> rustix::io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&master)?;
        // Opening the peer through the master does not depend on what is mounted at /dev/pts.
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        rustix::termios::tcsetwinsize(&slave, size)?;
        // Programs such as `mesg` and `screen` expect the terminal to belong to its user. Not worth an error.
        let _ = rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(owner)), None);
        let _ = rustix::fs::fchmod(&slave, Mode::RUSR | Mode::WUSR | Mode::WGRP);
        let name = TerminalName { connection: connection::of_terminal(&slave)?, owner };
        Ok(Self { master, slave: Arc::new(slave), name })
    }

    /// Opens a terminal with the size and modes of a saved one, if possible at the same path: programs may know it.
    pub(super) fn restore(saved: &SavedTerminal) -> io::Result<Self> {
        let size = Winsize { ws_row: saved.rows, ws_col: saved.columns, ws_xpixel: 0, ws_ypixel: 0 };
        let mut lower = Vec::new();
        // The kernel gives out the lowest free number.
        let opened = loop {
            let opened = Self::open(size, saved.owner)?;
            if number(opened.name.connection) >= number(saved.connection) || lower.len() == MAX_ATTEMPTS {
                break opened;
            }
            lower.push(opened);
        };
        let mut termios = rustix::termios::tcgetattr(&opened.slave)?;
        saved.modes.apply(&mut termios);
        rustix::termios::tcsetattr(&opened.slave, OptionalActions::Now, &termios)?;
        Ok(opened)
    }
}

impl SavedTerminal {
    /// The master shows the size and modes of its slave.
    pub(super) fn new(name: TerminalName, master: impl AsFd) -> io::Result<Self> {
        let size = rustix::termios::tcgetwinsize(&master)?;
        let modes = SavedModes::new(&rustix::termios::tcgetattr(&master)?);
        let TerminalName { connection, owner } = name;
        Ok(Self { connection, owner, rows: size.ws_row, columns: size.ws_col, modes })
    }
}

impl SavedModes {
    fn new(termios: &Termios) -> Self {
        Self {
            input: termios.input_modes.bits(),
            output: termios.output_modes.bits(),
            control: termios.control_modes.bits(),
            local: termios.local_modes.bits(),
            special_codes: SPECIAL_CODES.iter().map(|index| termios.special_codes[*index]).collect(),
        }
    }

    fn apply(&self, termios: &mut Termios) {
        termios.input_modes = InputModes::from_bits_retain(self.input);
        termios.output_modes = OutputModes::from_bits_retain(self.output);
        termios.control_modes = ControlModes::from_bits_retain(self.control);
        termios.local_modes = LocalModes::from_bits_retain(self.local);
        for (index, code) in SPECIAL_CODES.iter().zip(&self.special_codes) {
            termios.special_codes[*index] = *code;
        }
    }
}

/// The number in `/dev/pts`.
fn number(connection: Connection) -> u32 {
    match connection {
        Connection::Terminal { device, .. } => rustix::fs::minor(device),
        Connection::Pipe { .. } | Connection::Socket { .. } => 0,
    }
}

/// The size of a terminal. Numbers that are too large are clamped.
pub(super) fn window_size(pty: &PTY) -> Winsize {
    let clamp = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Winsize { ws_row: clamp(pty.size.rows), ws_col: clamp(pty.size.cols), ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_comes_back_with_its_size_modes_and_number() {
        let size = Winsize { ws_row: 31, ws_col: 97, ws_xpixel: 0, ws_ypixel: 0 };
        let uid = rustix::process::getuid().as_raw();
        let first = TerminalEnds::open(size, uid).unwrap();
        let mut termios = rustix::termios::tcgetattr(&first.slave).unwrap();
        termios.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        termios.special_codes[SpecialCodeIndex::VINTR] = 24;
        rustix::termios::tcsetattr(&first.slave, OptionalActions::Now, &termios).unwrap();
        let saved = SavedTerminal::new(first.name, &first.master).unwrap();
        let saved: SavedTerminal = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        drop(first);
        let second = TerminalEnds::restore(&saved).unwrap();
        let again = SavedTerminal::new(second.name, &second.master).unwrap();
        assert_eq!((again.rows, again.columns, again.modes), (31, 97, saved.modes));
        // Other tests open terminals too, so the number may be higher.
        assert!(number(second.name.connection) >= number(saved.connection));
    }
}
