//! The first steps of a zygote: enter the template's root, drop all rights, and execute its program.
//!
//! It stays in the host's user and pid namespaces, where it is an ordinary user without capabilities. It sees nothing
//! of the host: its root is the template's, without `/proc`, and its network namespace is empty.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{UnmountFlags, mount_bind_recursive, unmount};
use rustix::process::chdir;

use super::ZygoteProgram;
use super::channel::Channel;
use super::init::{FREE_FDS, set_up_process};
use super::message::{LaunchOrder, PrepareOrder, Progress};
use super::root::NEW_ROOT;
use super::step::{Failure, Step};
use crate::capabilities::{drop_all, empty_bounding_set};
use crate::sys::cred::{clear_groups, set_group_ids, set_user_ids};
use crate::sys::mount::pivot_to_current_directory;
use crate::sys::process::{close_from_on_exec, exec_fd, move_fd_above, place_fd};
use crate::sys::seccomp::{self, Instruction};

/// The descriptor of its program's socket.
const SOCKET_FD: i32 = 3;

/// Prepares the zygote, waits for the order and executes its program.
pub(super) fn run(order: &PrepareOrder, program: &ZygoteProgram, channel: &Channel, filter: &[Instruction]) {
    let reported = match prepare(order, program, filter) {
        Ok(()) => channel.send(&Progress::Waiting, &[]),
        Err(failure) => return drop(channel.send(&Progress::Failed(failure), &[])),
    };
    let Ok((_, fds)) = reported.and_then(|()| channel.receive::<LaunchOrder>()) else { return };
    let mut fds = fds.into_iter().filter_map(|fd| move_fd_above(fd, FREE_FDS).ok());
    let (Some(socket), Some(ready)) = (fds.next(), fds.next()) else { return };
    let Err(failure) = become_program(program, &socket);
    let text = serde_json::to_vec(&failure).unwrap_or_default();
    // If the server is gone, nobody reads the error.
    let _ = rustix::io::write(&ready, &text);
}

fn prepare(order: &PrepareOrder, program: &ZygoteProgram, filter: &[Instruction]) -> Result<(), Failure> {
    enter_root()?;
    set_up_process(&order.host_name)?;
    set_group_ids(Some(program.id), Some(program.id), Some(program.id)).step("take the zygote's group")?;
    clear_groups().step("leave the host's groups")?;
    empty_bounding_set().step("empty the bounding set")?;
    // Before the rights are dropped: without CAP_SYS_ADMIN, the kernel would require no_new_privs, and all forks would
    // inherit it.
    seccomp::load(filter).step("load the zygote's filter")?;
    set_user_ids(Some(program.id), Some(program.id), Some(program.id)).step("take the zygote's user")?;
    drop_all().step("drop capabilities")
}

fn enter_root() -> Result<(), Failure> {
    mount_bind_recursive(NEW_ROOT, NEW_ROOT).step("copy the root's mounts")?;
    chdir(NEW_ROOT).step("go to the new root")?;
    pivot_to_current_directory().step("change the root")?;
    unmount(".", UnmountFlags::DETACH).step("detach the old root")?;
    chdir("/").step("go to the root")
}

fn become_program(program: &ZygoteProgram, socket: &OwnedFd) -> Result<std::convert::Infallible, Failure> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step("open /dev/null")?;
    for number in 0..=2 {
        place_fd(&null, number).step("place stdio")?;
    }
    place_fd(socket, SOCKET_FD).step("place the socket")?;
    close_from_on_exec(SOCKET_FD + 1).step("close what the zygote does not need")?;
    let file = open(&program.program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("open the program")?;
    let texts = |list: &[String]| list.iter().filter_map(|text| CString::new(text.as_str()).ok()).collect::<Vec<_>>();
    Err(exec_fd(&file, &texts(&program.arguments), &texts(&program.environment))).step("start the zygote's program")
}
