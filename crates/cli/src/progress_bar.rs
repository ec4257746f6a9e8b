//! How far long work is, for people: one line on standard error that changes on a terminal, a line a step elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isopod_node::TemplateProgress;

use crate::printable::printable;

const WIDTH: u32 = 24;
/// Longer words would go on in the next line of a usual terminal, where nothing clears them.
const MAX_MESSAGE: usize = 40;
/// How often the seconds are counted.
const TICK: Duration = Duration::from_secs(1);

/// Whether the last line of the terminal is a bar. Whoever writes another line there erases the bar first.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Makes room for another line, such as one of the log. The bar comes back below it.
pub(crate) fn erase() {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        put("\r\x1b[K");
    }
}

/// Progress with steps.
#[derive(Debug)]
pub(crate) struct Bar {
    is_terminal: bool,
    began: Instant,
    last: std::cell::RefCell<Option<TemplateProgress>>,
}

impl Default for Bar {
    fn default() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), began: Instant::now(), last: Default::default() }
    }
}

impl Bar {
    /// Whether there is a line that changes.
    pub(crate) fn is_on_terminal(&self) -> bool {
        self.is_terminal
    }

    pub(crate) fn show(&self, step: &TemplateProgress) {
        if self.is_terminal {
            self.last.replace(Some(step.clone()));
            self.draw();
        } else {
            put(&format!("{}/{} {}\n", step.done, step.total, printable(&step.message)));
        }
    }

    /// Does the work and counts its seconds.
    pub(crate) async fn while_working<T>(&self, work: impl Future<Output = T>) -> T {
        let count = async {
            loop {
                tokio::time::sleep(TICK).await;
                self.draw();
            }
        };
        tokio::select! {
            done = work => done,
            () = count => unreachable!("seconds do not end"),
        }
    }

    fn draw(&self) {
        if let Some(step) = &*self.last.borrow() {
            put(&format!("\r\x1b[K{}", line(step, self.began.elapsed())));
            IS_DRAWN.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Bar {
    /// Leaves nothing of the bar behind.
    fn drop(&mut self) {
        erase();
    }
}

fn line(step: &TemplateProgress, taken: Duration) -> String {
    let TemplateProgress { done, total, message } = step;
    let full = (done * WIDTH).checked_div(*total).unwrap_or(0).min(WIDTH) as usize;
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH as usize - full));
    let message: String = printable(message).chars().take(MAX_MESSAGE).collect();
    format!("{bar} {done}/{total} {message} ({} s)", taken.as_secs())
}

/// Write errors are ignored.
fn put(text: &str) {
    let mut error = std::io::stderr();
    let _ = error.write_all(text.as_bytes());
    let _ = error.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(done: u32, total: u32, message: &str) -> TemplateProgress {
        TemplateProgress { done, total, message: message.to_owned() }
    }

    #[test]
    fn a_bar_is_as_full_as_the_work_is_done() {
        let shown = line(&step(1, 4, "Installing pandas"), Duration::from_secs(9));
        assert_eq!(shown, format!("{}{} 1/4 Installing pandas (9 s)", "█".repeat(6), "░".repeat(18)));
        assert!(line(&step(0, 0, "starting"), Duration::ZERO).starts_with(&"░".repeat(24)));
    }

    #[test]
    fn a_long_or_hostile_message_stays_in_its_line() {
        let shown = line(&step(1, 1, &"x\u{1b}[2J\n".repeat(50)), Duration::ZERO);
        assert!(shown.chars().count() < 80 && !shown.contains(['\u{1b}', '\n']), "{shown}");
    }
}
