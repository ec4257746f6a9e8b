//! Admits a zygote's fork into a sandbox, and checks its rights before the sandbox is used.
//!
//! ```text
//! fork, outside   ── Outside ──▶ server: moves it into the sandbox's cgroups
//!                 ◀── go ──
//! enters the namespaces, forks, drops every right
//! fork, inside    ── Inside ───▶ server: checks ids, capabilities, filter, namespaces, cgroups, descriptors
//!                 ◀── go ──
//! serves the guest
//! ```
//!
//! The kernel names the sender of each message, so a fork can speak only for itself, and it never holds a descriptor of
//! a cgroup. It waits for each reply, and ends if the server's end closes instead.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, makedev};
use rustix::net::{SendFlags, send};
use serde::Deserialize;

use crate::capabilities::kept_mask;
use crate::cgroup::{CgroupError, SandboxCgroup};
use crate::sys::peer::{Sender, name_senders, receive_named};

/// Enough for an error's text.
const MAX_MESSAGE: usize = 4096;
const GO: &[u8] = b"go";
/// The zygote's own filter, which its forks inherit, and the sandbox's.
const FILTERS: u32 = 2;

/// Why a fork was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// It is gone, silent, or sent an invalid message.
    #[error("could not communicate with the interpreter that enters the sandbox")]
    Channel(#[from] io::Error),
    /// One of its steps failed.
    #[error("the interpreter could not enter its sandbox: {step}: {error}")]
    Step { step: String, error: String },
    /// It could not be moved into the cgroups.
    #[error("could not move the interpreter into its cgroups")]
    Cgroup(#[from] CgroupError),
    /// It has more rights than it should.
    #[error("the interpreter has more than its sandbox allows: {0}")]
    Rights(String),
}

/// A message of a fork.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Message {
    Outside {},
    Inside {},
    Failed { step: String, error: String },
}

/// The expected properties of a process inside a sandbox: its root, with the capabilities that root keeps there.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its ids on the host.
    pub uid: u32,
    pub gid: u32,
    /// The pid of the sandbox's first process, which has the same namespaces and cgroups.
    pub init: u32,
    /// The only socket that it keeps, as the number from [`socket_number`].
    pub connection: u64,
}

/// Returns the number by which `/proc/PID/fd` names this end of a connection, in any process.
pub fn socket_number(socket: impl AsFd) -> io::Result<u64> {
    Ok(fstat(socket)?.st_ino)
}

/// The server's end of an admission.
#[derive(Debug)]
pub struct Admission {
    socket: OwnedFd,
    /// The number of the fork's end.
    theirs: u64,
}

impl Admission {
    /// Creates the server's end and the one for the zygote. A fork that is silent for longer than `timeout` is an
    /// error.
    pub fn new(timeout: Duration) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = isopod_channel::pair()?;
        name_senders(&ours)?;
        isopod_channel::set_timeout(&ours, Some(timeout))?;
        let number = socket_number(&theirs)?;
        Ok((Self { socket: ours, theirs: number }, theirs))
    }

    /// Moves the fork into the sandbox's cgroups and lets it enter. `owner` is the host id of the zygote's user, which
    /// only the zygote and its forks have.
    pub fn let_in(&self, owner: u32, cgroup: &SandboxCgroup) -> Result<(), AdmissionError> {
        let sender = self.expect("outside", |message| matches!(message, Message::Outside {}))?;
        if sender.uid != owner {
            return Err(AdmissionError::Rights(format!("it runs as user {} instead of {owner}", sender.uid)));
        }
        require_alive(&sender)?;
        let moved = cgroup.add(sender.pid).map_err(AdmissionError::from).and_then(|()| require_alive(&sender));
        if let Err(error) = moved {
            // Its pid may have been reused by another process, which must not stay in the cgroups.
            cgroup.expel(sender.pid);
            return Err(error);
        }
        self.say_go()
    }

    /// Waits until the fork reports that it has dropped its rights, verifies that, and lets it serve.
    pub fn check_and_let_serve(&self, expected: &Expected) -> Result<(), AdmissionError> {
        let sender = self.expect("inside", |message| matches!(message, Message::Inside {}))?;
        let wrong = |reason: String| AdmissionError::Rights(reason);
        check_status(&read(sender.pid, "status").map_err(wrong)?, expected).map_err(wrong)?;
        check_place(sender.pid, expected.init).map_err(wrong)?;
        check_descriptors(sender.pid, [self.theirs, expected.connection]).map_err(wrong)?;
        // Ensures that the data read above belongs to this process.
        require_alive(&sender)?;
        self.say_go()
    }

    fn expect(&self, what: &str, is_expected: impl Fn(&Message) -> bool) -> Result<Sender, AdmissionError> {
        let mut text = [0; MAX_MESSAGE];
        let (length, sender) = receive_named(&self.socket, &mut text)?;
        match serde_json::from_slice(&text[..length]).map_err(io::Error::from)? {
            Message::Failed { step, error } => Err(AdmissionError::Step { step, error }),
            message if is_expected(&message) => Ok(sender),
            other => {
                let text = format!("expected {what}, got {other:?}");
                Err(AdmissionError::Channel(io::Error::new(io::ErrorKind::InvalidData, text)))
            }
        }
    }

    fn say_go(&self) -> Result<(), AdmissionError> {
        send(&self.socket, GO, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
        Ok(())
    }
}

impl AsFd for Admission {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn require_alive(sender: &Sender) -> Result<(), AdmissionError> {
    let mut fds = [PollFd::new(&sender.pidfd, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(io::Error::from)? {
        0 => Ok(()),
        _ => Err(AdmissionError::Channel(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Checks ids, capabilities and filters in `/proc/PID/status`.
fn check_status(status: &str, expected: &Expected) -> Result<(), String> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let ids = |id: u32| [id; 4].map(|id| id.to_string()).join(" ");
    let (none, kept) = (format!("{:016x}", 0), format!("{:016x}", kept_mask()));
    let wanted = [
        ("Uid", ids(expected.uid)),
        ("Gid", ids(expected.gid)),
        ("Groups", String::new()),
        ("CapInh", none.clone()),
        ("CapPrm", kept.clone()),
        ("CapEff", kept.clone()),
        ("CapAmb", none),
        ("CapBnd", kept),
        ("Seccomp", "2".to_owned()),
        ("Seccomp_filters", FILTERS.to_string()),
        // The status is that of the first thread, and each thread has its own.
        ("Threads", "1".to_owned()),
    ];
    for (name, wanted) in wanted {
        // Kernels before 5.9 do not report the number of filters, and cannot run sandboxes.
        let found = field(name).ok_or_else(|| format!("the kernel does not report its {name}"))?;
        if found != wanted {
            return Err(format!("{name} is {found:?} instead of {wanted:?}"));
        }
    }
    Ok(())
}

/// Checks namespaces and cgroups.
pub(super) fn check_place(pid: u32, init: u32) -> Result<(), String> {
    for name in super::enter::names() {
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{name}")).map_err(|error| error.to_string());
        if of(pid)? != of(init)? {
            return Err(format!("it is in another {name} namespace"));
        }
    }
    if read(pid, "cgroup")? != read(init, "cgroup")? {
        return Err("it is in other cgroups".to_owned());
    }
    Ok(())
}

/// Allows only null devices and these two sockets, because any other descriptor could lead out of the sandbox.
fn check_descriptors(pid: u32, sockets: [u64; 2]) -> Result<(), String> {
    let sockets = sockets.map(|number| format!("socket:[{number}]"));
    let directory = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| error.to_string())?;
    for entry in directory {
        let path = entry.map_err(|error| error.to_string())?.path();
        let target = fs::read_link(&path).map_err(|error| error.to_string())?;
        let target = target.to_string_lossy();
        if !sockets.iter().any(|socket| *socket == target) && !is_null(&path) {
            return Err(format!("it holds {target}"));
        }
    }
    Ok(())
}

/// By device number, because anything can have the name.
fn is_null(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == makedev(1, 3))
}

fn read(pid: u32, name: &str) -> Result<String, String> {
    fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(|error| format!("/proc/{pid}/{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{RecvFlags, SendFlags, recv, send};
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, waitid};

    use super::*;
    use crate::alone::alone;
    use crate::cgroup::{Cgroups, Layout};
    use crate::sys::ns::Namespaces;
    use crate::sys::process::{Fork, close_all_but, exit_now, fork, fork_into};

    /// Waits longer than any machine is slow.
    fn admission() -> (Admission, OwnedFd) {
        Admission::new(Duration::from_secs(60)).expect("a pair of sockets")
    }

    fn expected() -> Expected {
        Expected { uid: 1, gid: 1, init: std::process::id(), connection: 0 }
    }

    #[test]
    fn a_process_that_kept_another_socket_or_file_is_refused() {
        alone("launch::admission::tests::a_process_that_kept_another_socket_or_file_is_refused", || {
            let (admission, theirs) = admission();
            let (_guest, connection) = isopod_channel::pair().expect("a pair of sockets");
            let (_other, foreign) = isopod_channel::pair().expect("a pair of sockets");
            let null = File::open("/dev/null").expect("a device");
            let file = tempfile::tempfile().expect("a file");
            let sockets = [admission.theirs, socket_number(&connection).expect("a number")];
            let check = |others: &[BorrowedFd<'_>]| {
                let kept = [&[theirs.as_fd(), connection.as_fd(), null.as_fd()], others].concat();
                let Fork::Parent { pid, pidfd } = fork().expect("a fork") else { hold_only(&kept, &theirs) };
                recv(&admission.socket, &mut [0; 8], RecvFlags::empty()).expect("it has closed the rest");
                let checked = check_descriptors(pid, sockets);
                pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
                checked
            };
            assert_eq!(check(&[]), Ok(()));
            let number = socket_number(&foreign).expect("a number");
            assert_eq!(check(&[foreign.as_fd()]), Err(format!("it holds socket:[{number}]")));
            assert_eq!(
                check(&[admission.socket.as_fd()]).expect_err("that end is ours").split(':').next(),
                Some("it holds socket")
            );
            assert!(check(&[file.as_fd()]).is_err());
        });
    }

    fn hold_only(kept: &[BorrowedFd<'_>], tell: &OwnedFd) -> ! {
        if close_all_but(kept).is_ok() && send(tell, b"closed", SendFlags::empty()).is_ok() {
            wait_forever()
        }
        exit_now(1)
    }

    #[test]
    fn a_process_that_kept_its_rights_is_refused() {
        let (admission, theirs) = admission();
        send(&theirs, br#"{"op":"inside"}"#, SendFlags::empty()).expect("a message is sent");
        let error = admission.check_and_let_serve(&expected()).expect_err("this test has not dropped its rights");
        assert!(matches!(error, AdmissionError::Rights(_)), "{error:?}");
    }

    /// The status of an interpreter that has dropped everything but what root keeps.
    const GOOD_STATUS: &str = "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPid:\t7\nPPid:\t1\n\
        Uid:\t5000\t5000\t5000\t5000\nGid:\t6000\t6000\t6000\t6000\nFDSize:\t64\nGroups:\t \nNSpid:\t7\t3\n\
        VmPeak:\t  100 kB\nThreads:\t1\nSigQ:\t0/16384\nCapInh:\t0000000000000000\nCapPrm:\t00000000a80405fb\n\
        CapEff:\t00000000a80405fb\nCapBnd:\t00000000a80405fb\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\n\
        Seccomp:\t2\nSeccomp_filters:\t2\nSpeculation_Store_Bypass:\tvulnerable\n";

    #[test]
    fn each_right_that_a_process_kept_is_enough_to_refuse_it() {
        let expected = Expected { uid: 5000, gid: 6000, ..expected() };
        assert_eq!(check_status(GOOD_STATUS, &expected), Ok(()));
        for (field, good, bad) in [
            ("Uid", "5000\t5000\t5000\t5000", "0\t5000\t5000\t5000"),
            ("Uid", "5000\t5000\t5000\t5000", "5000\t0\t5000\t5000"),
            ("Uid", "5000\t5000\t5000\t5000", "5000\t5000\t0\t5000"),
            ("Uid", "5000\t5000\t5000\t5000", "5000\t5000\t5000\t0"),
            ("Gid", "6000\t6000\t6000\t6000", "0\t6000\t6000\t6000"),
            ("Gid", "6000\t6000\t6000\t6000", "6000\t0\t6000\t6000"),
            ("Gid", "6000\t6000\t6000\t6000", "6000\t6000\t0\t6000"),
            ("Gid", "6000\t6000\t6000\t6000", "6000\t6000\t6000\t0"),
            ("Groups", " ", "0 "),
            ("CapInh", "0000000000000000", "0000000000000001"),
            ("CapPrm", "00000000a80405fb", "00000000a82405fb"),
            ("CapEff", "00000000a80405fb", "00000000a82405fb"),
            ("CapAmb", "0000000000000000", "0000000000000001"),
            ("CapBnd", "00000000a80405fb", "000001ffffffffff"),
            ("Seccomp", "2", "0"),
            ("Seccomp_filters", "2", "1"),
            ("Seccomp_filters", "2", "3"),
            ("Threads", "1", "2"),
        ] {
            let line = format!("\n{field}:\t{good}\n");
            assert!(GOOD_STATUS.contains(&line), "{field}");
            let refused = check_status(&GOOD_STATUS.replace(&line, &format!("\n{field}:\t{bad}\n")), &expected);
            let reason = refused.expect_err(field);
            assert!(reason.starts_with(&format!("{field} is ")), "{bad:?}: {reason}");
            let silent = check_status(&GOOD_STATUS.replace(&line, "\n"), &expected).expect_err(field);
            assert_eq!(silent, format!("the kernel does not report its {field}"));
        }
    }

    /// A process of our own in other namespaces, until it is killed.
    fn waiting_in(namespaces: Option<Namespaces>) -> (u32, OwnedFd) {
        match namespaces.map_or_else(fork, fork_into).expect("a fork") {
            Fork::Parent { pid, pidfd } => (pid, pidfd),
            Fork::Child => wait_forever(),
        }
    }

    /// If a test fails, its processes end with it.
    fn wait_forever() -> ! {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_process_in_another_namespace_or_cgroup_is_refused() {
        alone("launch::admission::tests::a_process_in_another_namespace_or_cgroup_is_refused", || {
            let init = std::process::id();
            let check = |namespaces| {
                let (pid, pidfd) = waiting_in(namespaces);
                let checked = check_place(pid, init);
                pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
                checked
            };
            assert_eq!(check(None), Ok(()));
            let namespaces = [
                ("user", Namespaces::USER),
                ("mnt", Namespaces::MOUNT),
                ("pid", Namespaces::PID),
                ("net", Namespaces::NET),
                ("ipc", Namespaces::IPC),
                ("uts", Namespaces::UTS),
                ("cgroup", Namespaces::CGROUP),
                ("time", Namespaces::TIME),
            ];
            assert_eq!(namespaces.map(|(name, _)| name), super::super::Enter::NAMESPACES);
            for (name, namespace) in namespaces {
                assert_eq!(check(Some(namespace)), Err(format!("it is in another {name} namespace")));
            }
            with_group(|group| {
                let (pid, pidfd) = waiting_in(None);
                group.add(pid).expect("it is moved");
                assert_eq!(check_place(pid, init), Err("it is in other cgroups".to_owned()));
                pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
            });
        });
    }

    /// Creates the cgroups of a sandbox and removes them afterwards.
    fn with_group(test: impl FnOnce(&SandboxCgroup)) {
        let tag = format!("t{:x}", std::process::id());
        let cgroups =
            Cgroups::open(Layout::detect().expect("a host has cgroups"), &tag).expect("the test's own groups");
        let group = cgroups.create("way-in").expect("a group");
        test(&group);
        group.kill().expect("all in it can be killed");
        group.remove().expect("nobody is left");
        cgroups.remove().expect("the test's own group goes");
    }

    /// A fork that asks to be admitted and then waits.
    fn asking(theirs: &OwnedFd) -> (u32, OwnedFd) {
        let Fork::Parent { pid, pidfd } = fork().expect("a fork") else {
            let _ = send(theirs, br#"{"op":"outside"}"#, SendFlags::empty());
            wait_forever()
        };
        (pid, pidfd)
    }

    fn is_in_group_of_this_test(pid: u32) -> bool {
        read(pid, "cgroup").expect("it lives").contains(&format!("isopod-t{:x}/", std::process::id()))
    }

    #[test]
    fn the_zygotes_fork_is_moved_and_nobody_else_is() {
        alone("launch::admission::tests::the_zygotes_fork_is_moved_and_nobody_else_is", || {
            with_group(|group| {
                let (admission, theirs) = admission();
                let (pid, pidfd) = asking(&theirs);
                let error = admission.let_in(1_999_999_999, group).expect_err("it is another user's");
                assert!(matches!(&error, AdmissionError::Rights(text) if text.contains("user 0")), "{error:?}");
                assert!(!is_in_group_of_this_test(pid) && group.pids().is_empty());
                pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");

                let (pid, _pidfd) = asking(&theirs);
                admission.let_in(0, group).expect("it is this user's");
                assert!(is_in_group_of_this_test(pid));
                assert_eq!(group.pids(), [pid]);
            });
        });
    }

    #[test]
    fn a_fork_that_died_before_it_was_let_in_brings_nobody_into_the_groups() {
        alone("launch::admission::tests::a_fork_that_died_before_it_was_let_in_brings_nobody_into_the_groups", || {
            with_group(|group| {
                for is_reaped in [false, true] {
                    let (admission, theirs) = admission();
                    let (_, pidfd) = asking(&theirs);
                    // The message is sent before it dies.
                    let mut waiting = [PollFd::new(&admission.socket, PollFlags::IN)];
                    poll(&mut waiting, None).expect("it asks");
                    pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
                    let options =
                        if is_reaped { WaitIdOptions::EXITED } else { WaitIdOptions::EXITED | WaitIdOptions::NOWAIT };
                    waitid(WaitId::PidFd(pidfd.as_fd()), options).expect("it is our child");
                    let error = admission.let_in(0, group).expect_err("it is gone");
                    assert!(matches!(error, AdmissionError::Channel(_)), "{error:?}");
                    assert!(group.pids().is_empty());
                }
            });
        });
    }

    #[test]
    fn a_fork_that_cannot_be_moved_into_all_groups_is_left_in_none() {
        alone("launch::admission::tests::a_fork_that_cannot_be_moved_into_all_groups_is_left_in_none", || {
            let layout = Layout::detect().expect("a host has cgroups");
            with_group(|group| {
                let last = layout.hierarchies().into_iter().next_back().expect("a hierarchy");
                fs::remove_dir(last.join(format!("isopod-t{:x}/way-in", std::process::id()))).expect("it is empty");
                let (admission, theirs) = admission();
                let (pid, pidfd) = asking(&theirs);
                let error = admission.let_in(0, group).expect_err("one of the groups is gone");
                assert!(matches!(error, AdmissionError::Cgroup(_)), "{error:?}");
                assert!(!is_in_group_of_this_test(pid) && group.pids().is_empty());
                pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
            });
        });
    }

    #[test]
    fn silence_nonsense_and_a_closed_end_are_errors() {
        let (admission, theirs) = Admission::new(Duration::from_millis(50)).expect("a pair of sockets");
        let silent = admission.check_and_let_serve(&expected()).expect_err("nobody speaks");
        assert!(matches!(silent, AdmissionError::Channel(_)), "{silent:?}");
        for text in [&b"?"[..], br#"{"op":"outside"}"#, &[b'x'; 2 * MAX_MESSAGE]] {
            send(&theirs, text, SendFlags::empty()).expect("a message is sent");
            let protocol_error = admission.check_and_let_serve(&expected()).expect_err("that is not the word");
            assert!(matches!(protocol_error, AdmissionError::Channel(_)), "{protocol_error:?}");
        }
        drop(theirs);
        assert!(admission.check_and_let_serve(&expected()).is_err());
    }

    #[test]
    fn a_failed_step_is_told() {
        let (admission, theirs) = admission();
        send(&theirs, br#"{"op":"failed","step":"uid","error":"no"}"#, SendFlags::empty()).expect("a message is sent");
        let error = admission.check_and_let_serve(&expected()).expect_err("it failed");
        assert!(matches!(error, AdmissionError::Step { .. }), "{error:?}");
    }
}
