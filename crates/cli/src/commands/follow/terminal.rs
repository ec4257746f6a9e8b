//! The terminal that the command is followed from.

use std::io::{self, IsTerminal as _};

use isopod_client::guest::PtySize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Whether a person can type.
pub(in crate::commands) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Its size, or the usual one.
pub(in crate::commands) fn terminal_size() -> PtySize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => PtySize { cols: size.ws_col, rows: size.ws_row },
        _ => PtySize { cols: 80, rows: 24 },
    }
}

/// Keys go to the command as they are pressed, until this is dropped.
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // There is nobody to tell that the terminal could not be put back.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
