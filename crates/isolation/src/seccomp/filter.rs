//! Compiles a table of decisions into a BPF program.
//!
//! The program first checks the ABI, then finds the system call by binary search over ranges of numbers with the same
//! decision. It uses only forward jumps of any length, so the table may grow.

use std::collections::BTreeMap;

use super::rules::{Action, Check, LAST_KNOWN};
use crate::sys::seccomp::Instruction;

const LOAD: u16 = 0x20; // A = word of seccomp_data at the operand
const AND: u16 = 0x54; // A &= operand
const JUMP: u16 = 0x05; // skip operand instructions
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;

const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
/// The bits of a socket's type that are not flags.
const SOCKET_TYPE: u32 = 0xf;
const SOCK_STREAM: u32 = libc::SOCK_STREAM as u32;
const SOCK_DGRAM: u32 = libc::SOCK_DGRAM as u32;
const SOCK_RAW: u32 = libc::SOCK_RAW as u32;
const SOCK_PACKET: u32 = 10;

/// Returns the whole program.
pub(super) fn assemble(table: &BTreeMap<u32, Action>) -> Vec<Instruction> {
    let mut program = vec![
        load(ARCH_OFFSET),
        // Another ABI has other numbers, so a 32-bit call would be checked by the wrong rule.
        jump_if(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        ret(RET_KILL_PROCESS),
        load(NUMBER_OFFSET),
        jump_if(JUMP_GREATER_EQUAL, X32_BIT, 0, 1),
        ret(RET_KILL_PROCESS),
    ];
    program.extend(search(&ranges(table)));
    program
}

/// The decision for numbers from `start` up to the next range.
struct Range {
    start: u32,
    action: Action,
}

fn ranges(table: &BTreeMap<u32, Action>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for number in 0..=LAST_KNOWN + 1 {
        let unknown = if number > LAST_KNOWN { libc::ENOSYS } else { libc::EPERM };
        let action = table.get(&number).copied().unwrap_or(Action::Refuse(unknown));
        if ranges.last().is_none_or(|last| last.action != action) {
            ranges.push(Range { start: number, action });
        }
    }
    ranges
}

fn search(ranges: &[Range]) -> Vec<Instruction> {
    if let [only] = ranges {
        return decide(only.action);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let low_code = search(low);
    let mut code = vec![jump_if(JUMP_GREATER_EQUAL, high[0].start, 0, 1), jump(low_code.len())];
    code.extend(low_code);
    code.extend(search(high));
    code
}

fn decide(action: Action) -> Vec<Instruction> {
    match action {
        Action::Allow => vec![ret(RET_ALLOW)],
        Action::Refuse(errno) => vec![refuse(errno)],
        Action::Check(check) => decide_by_argument(check),
    }
}

fn decide_by_argument(check: Check) -> Vec<Instruction> {
    match check {
        Check::WithoutBits { argument, bits, errno } => vec![
            load_argument(argument),
            Instruction { code: AND, jump_true: 0, jump_false: 0, operand: bits },
            jump_if(JUMP_EQUAL, 0, 0, 1),
            ret(RET_ALLOW),
            refuse(errno),
        ],
        Check::NoneOf { argument, values, errno } => compare(argument, values, refuse(errno), vec![ret(RET_ALLOW)]),
        Check::OneOf { argument, values, errno } => compare(argument, values, ret(RET_ALLOW), vec![refuse(errno)]),
        Check::KeepLimit { resource } => keep_limit(resource),
        Check::Socket { families, internet, protocols } => {
            compare(0, families, ret(RET_ALLOW), internet_or_routes(internet, protocols))
        }
    }
}

/// Continues after the check of a socket's family: allows `internet` families if the socket is not raw and its protocol
/// is in the list, and netlink if it is for routes.
fn internet_or_routes(internet: &[u32], protocols: &[u32]) -> Vec<Instruction> {
    let plain = plain_socket(protocols);
    let mut code = Vec::new();
    for family in internet {
        code.extend([jump_if(JUMP_EQUAL, *family, 1, 0), jump(plain.len())]);
        code.extend(&plain);
    }
    code.extend([
        jump_if(JUMP_EQUAL, AF_NETLINK, 0, 3),
        load_argument(2),
        jump_if(JUMP_EQUAL, 0, 0, 1),
        ret(RET_ALLOW),
        refuse(libc::EAFNOSUPPORT),
    ]);
    code
}

/// Streams and datagrams of these protocols.
fn plain_socket(protocols: &[u32]) -> Vec<Instruction> {
    let mut code = vec![
        load_argument(1),
        // The upper bits are flags.
        Instruction { code: AND, jump_true: 0, jump_false: 0, operand: SOCKET_TYPE },
        jump_if(JUMP_EQUAL, SOCK_STREAM, 5, 0),
        jump_if(JUMP_EQUAL, SOCK_DGRAM, 4, 0),
        jump_if(JUMP_EQUAL, SOCK_RAW, 2, 0),
        // The kernel treats this as a packet socket for IPv4.
        jump_if(JUMP_EQUAL, SOCK_PACKET, 1, 0),
        refuse(libc::ESOCKTNOSUPPORT),
        refuse(libc::EPERM),
    ];
    code.extend(compare(2, protocols, ret(RET_ALLOW), vec![refuse(libc::EPROTONOSUPPORT)]));
    code
}

/// For `prlimit64(pid, resource, new, old)`: reading is allowed, a change alone is faked, and a change that also
/// requests the old value is refused, because a filter cannot fill that in.
fn keep_limit(resource: u32) -> Vec<Instruction> {
    vec![
        load_argument(1),
        jump_if(JUMP_EQUAL, resource, 1, 0),
        ret(RET_ALLOW),
        load_argument(2),
        jump_if(JUMP_EQUAL, 0, 0, 3),
        load_upper_half(2),
        jump_if(JUMP_EQUAL, 0, 0, 1),
        ret(RET_ALLOW),
        load_argument(3),
        jump_if(JUMP_EQUAL, 0, 0, 3),
        load_upper_half(3),
        jump_if(JUMP_EQUAL, 0, 0, 1),
        refuse(0),
        refuse(libc::EPERM),
    ]
}

fn compare(argument: u8, values: &[u32], on_match: Instruction, otherwise: Vec<Instruction>) -> Vec<Instruction> {
    let mut code = vec![load_argument(argument)];
    for value in values {
        code.push(jump_if(JUMP_EQUAL, *value, 0, 1));
        code.push(on_match);
    }
    code.extend(otherwise);
    code
}

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, jump_true: 0, jump_false: 0, operand: offset }
}

/// Loads the lower 32 bits of an argument (little endian).
fn load_argument(argument: u8) -> Instruction {
    load(ARGUMENTS_OFFSET + 8 * u32::from(argument))
}

fn load_upper_half(argument: u8) -> Instruction {
    load(ARGUMENTS_OFFSET + 8 * u32::from(argument) + 4)
}

fn jump_if(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

fn jump(length: usize) -> Instruction {
    let operand = u32::try_from(length).expect("the program is a few hundred instructions long");
    Instruction { code: JUMP, jump_true: 0, jump_false: 0, operand }
}

fn ret(value: u32) -> Instruction {
    Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand: value }
}

fn refuse(errno: i32) -> Instruction {
    ret(RET_ERRNO | errno.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rules;
    use super::*;

    /// Runs the program as the kernel would.
    fn run(program: &[Instruction], arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
        let (mut at, mut value) = (0, 0u32);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => {
                    value = match step.operand {
                        NUMBER_OFFSET => number,
                        ARCH_OFFSET => arch,
                        offset => arguments[((offset - ARGUMENTS_OFFSET) / 8) as usize],
                    }
                }
                AND => value &= step.operand,
                JUMP => at += step.operand as usize,
                JUMP_EQUAL | JUMP_GREATER_EQUAL => {
                    let holds = if step.code == JUMP_EQUAL { value == step.operand } else { value >= step.operand };
                    at += usize::from(if holds { step.jump_true } else { step.jump_false });
                }
                RETURN => return step.operand,
                other => panic!("unknown code {other:#x}"),
            }
        }
    }

    fn answer(number: libc::c_long, arguments: [u32; 6]) -> u32 {
        run(&assemble(&rules::table()), AUDIT_ARCH_X86_64, number as u32, arguments)
    }

    const NONE: [u32; 6] = [0; 6];

    #[test]
    fn foreign_abis_are_killed() {
        let program = assemble(&rules::table());
        assert_eq!(run(&program, 0x4000_0003, 1, NONE), RET_KILL_PROCESS);
        assert_eq!(run(&program, AUDIT_ARCH_X86_64, X32_BIT | 1, NONE), RET_KILL_PROCESS);
    }

    #[test]
    fn new_namespaces_are_refused_and_threads_are_not() {
        let refused = RET_ERRNO | libc::EPERM as u32;
        assert_eq!(answer(libc::SYS_clone, [libc::CLONE_NEWUSER as u32, 0, 0, 0, 0, 0]), refused);
        assert_eq!(answer(libc::SYS_unshare, [libc::CLONE_NEWNS as u32, 0, 0, 0, 0, 0]), refused);
        assert_eq!(
            answer(libc::SYS_clone, [libc::CLONE_VM as u32 | libc::CLONE_THREAD as u32, 0, 0, 0, 0, 0]),
            RET_ALLOW
        );
        assert_eq!(answer(libc::SYS_clone3, NONE), RET_ERRNO | libc::ENOSYS as u32);
    }

    #[test]
    fn only_plain_socket_families_are_allowed() {
        let socket = |family: i32, protocol: u32| answer(libc::SYS_socket, [family as u32, 1, protocol, 0, 0, 0]);
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, 0), RET_ALLOW);
        }
        assert_eq!(socket(libc::AF_NETLINK, 0), RET_ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_NETFILTER as u32), RET_ERRNO | libc::EAFNOSUPPORT as u32);
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_XDP, libc::AF_ALG, libc::AF_BLUETOOTH] {
            assert_eq!(socket(family, 0), RET_ERRNO | libc::EAFNOSUPPORT as u32);
        }
    }

    #[test]
    fn raw_sockets_are_refused_whatever_flags_they_come_with() {
        let socket = |family: i32, kind: i32| answer(libc::SYS_socket, [family as u32, kind as u32, 0, 0, 0, 0]);
        let refused = RET_ERRNO | libc::EPERM as u32;
        for family in [libc::AF_INET, libc::AF_INET6] {
            for kind in [libc::SOCK_RAW, SOCK_PACKET as i32] {
                for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                    assert_eq!(socket(family, kind | flags), refused, "{family} {kind} {flags}");
                }
            }
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_STREAM | libc::SOCK_CLOEXEC] {
                assert_eq!(socket(family, kind), RET_ALLOW);
            }
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_RAW), RET_ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW), RET_ALLOW);
    }

    #[test]
    fn sockets_that_would_load_a_module_are_refused() {
        let socket = |family: i32, kind: i32, protocol: i32| {
            answer(libc::SYS_socket, [family as u32, kind as u32, protocol as u32, 0, 0, 0])
        };
        let refused = |errno: i32| RET_ERRNO | errno as u32;
        for family in [libc::AF_INET, libc::AF_INET6] {
            for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                // SCTP, DCCP, L2TP, SMC, and whatever comes next.
                for protocol in [132, 33, 115, 256, 2, 255, -1] {
                    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
                        assert_eq!(
                            socket(family, kind | flags, protocol),
                            refused(libc::EPROTONOSUPPORT),
                            "{protocol}"
                        );
                    }
                }
                for kind in [libc::SOCK_SEQPACKET, libc::SOCK_DCCP, libc::SOCK_RDM, 0, 7, 15] {
                    for protocol in [0, 6, 33, 132] {
                        assert_eq!(socket(family, kind | flags, protocol), refused(libc::ESOCKTNOSUPPORT), "{kind}");
                    }
                }
                for (kind, protocol) in [(1, 0), (1, 6), (1, 262), (2, 0), (2, 17), (2, 1), (2, 58), (2, 136)] {
                    assert_eq!(socket(family, kind | flags, protocol), RET_ALLOW, "{kind} {protocol}");
                }
            }
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), RET_ALLOW);
    }

    #[test]
    fn requests_that_load_a_module_are_refused_and_others_are_not() {
        let ioctl = |command: u32| answer(libc::SYS_ioctl, [3, command, 0, 0, 0, 0]);
        // TIOCSETD, bridges, VLANs.
        for command in [0x5423, 0x8940, 0x8941, 0x8982, 0x8983, 0x89a0, 0x89a1] {
            assert_eq!(ioctl(command), RET_ERRNO | libc::EPERM as u32, "{command:#x}");
        }
        // TCGETS, TIOCGWINSZ, FIONREAD, SIOCGIFCONF, SIOCGIFADDR.
        for command in [0x5401, 0x5413, 0x541b, 0x8912, 0x8915] {
            assert_eq!(ioctl(command), RET_ALLOW, "{command:#x}");
        }
    }

    #[test]
    fn huge_pages_are_refused_and_other_memory_is_not() {
        let map = |flags: i32| answer(libc::SYS_mmap, [0, 4096, 3, flags as u32, u32::MAX, 0]);
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        assert_eq!(map(private | libc::MAP_HUGETLB), RET_ERRNO | libc::ENOMEM as u32);
        assert_eq!(map(private | libc::MAP_HUGETLB | libc::MAP_HUGE_1GB), RET_ERRNO | libc::ENOMEM as u32);
        for flags in [private, libc::MAP_SHARED, private | libc::MAP_NORESERVE | libc::MAP_STACK | libc::MAP_POPULATE] {
            assert_eq!(map(flags), RET_ALLOW);
        }
        let segment = |flags: i32| answer(libc::SYS_shmget, [0, 4096, flags as u32, 0, 0, 0]);
        assert_eq!(segment(libc::IPC_CREAT | 0o600 | libc::SHM_HUGETLB), RET_ERRNO | libc::ENOMEM as u32);
        assert_eq!(segment(libc::IPC_CREAT | libc::IPC_EXCL | 0o600), RET_ALLOW);
        let memfd = |flags: u32| answer(libc::SYS_memfd_create, [1, flags, 0, 0, 0, 0]);
        assert_eq!(memfd(libc::MFD_HUGETLB), RET_ERRNO | libc::EINVAL as u32);
        assert_eq!(memfd(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING), RET_ALLOW);
    }

    #[test]
    fn sync_does_nothing_and_says_so_to_nobody() {
        assert_eq!(answer(libc::SYS_sync, NONE), RET_ERRNO);
        assert_eq!(answer(libc::SYS_fsync, NONE), RET_ALLOW);
    }

    #[test]
    fn a_zygote_may_start_a_keyring_and_nothing_else_with_keys() {
        let program = assemble(&rules::zygote_table());
        let keyctl = |operation| run(&program, AUDIT_ARCH_X86_64, libc::SYS_keyctl as u32, [operation, 0, 0, 0, 0, 0]);
        assert_eq!(keyctl(1), RET_ALLOW);
        for operation in [0, 2, 3, 5, 11, 30] {
            assert_eq!(keyctl(operation), RET_ERRNO | libc::EPERM as u32);
        }
    }

    #[test]
    fn the_limit_on_core_dumps_stays() {
        let set = |resource: u32, new: u32, old: u32| answer(libc::SYS_prlimit64, [0, resource, new, old, 0, 0]);
        assert_eq!(set(libc::RLIMIT_CORE, 0, 0x1000), RET_ALLOW);
        assert_eq!(set(libc::RLIMIT_CORE, 0x1000, 0), RET_ERRNO);
        assert_eq!(set(libc::RLIMIT_CORE, 0x1000, 0x1000), RET_ERRNO | libc::EPERM as u32);
        assert_eq!(set(libc::RLIMIT_NOFILE, 0x1000, 0x1000), RET_ALLOW);
        assert_eq!(answer(libc::SYS_setrlimit, [libc::RLIMIT_CORE, 0x1000, 0, 0, 0, 0]), RET_ERRNO);
        assert_eq!(answer(libc::SYS_setrlimit, [libc::RLIMIT_NOFILE, 0x1000, 0, 0, 0, 0]), RET_ALLOW);
    }

    #[test]
    fn a_call_newer_than_the_list_looks_missing() {
        assert_eq!(answer(libc::c_long::from(LAST_KNOWN + 1), NONE), RET_ERRNO | libc::ENOSYS as u32);
        assert_eq!(answer(100_000, NONE), RET_ERRNO | libc::ENOSYS as u32);
    }

    proptest! {
        #[test]
        fn the_program_decides_as_the_table_says(number in 0u32..=LAST_KNOWN) {
            let table = rules::table();
            let got = run(&assemble(&table), AUDIT_ARCH_X86_64, number, NONE);
            match table.get(&number) {
                Some(Action::Allow) => prop_assert_eq!(got, RET_ALLOW),
                Some(Action::Refuse(errno)) => prop_assert_eq!(got, RET_ERRNO | *errno as u32),
                Some(Action::Check(_)) => {}
                None => prop_assert_eq!(got, RET_ERRNO | libc::EPERM as u32),
            }
        }
    }
}
