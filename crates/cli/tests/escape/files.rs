//! Case 7: the files API. Whatever a path says, it means something inside the sandbox.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isopod_client::guest::Guest;

use crate::arena::Arena;
use crate::raw_http::request;
use crate::table::Who;

const SECRET: &str = "only the host may read this";

/// A file of the host that no sandbox may see or change.
struct HostFile {
    directory: PathBuf,
    path: PathBuf,
}

impl HostFile {
    fn new(arena: &Arena) -> Self {
        let directory = arena.platform.state().path().join("host-directory");
        std::fs::create_dir(&directory).expect("a directory");
        let path = directory.join("secret");
        std::fs::write(&path, SECRET).expect("a file");
        Self { directory, path }
    }

    fn assert_untouched(&self) {
        assert_eq!(std::fs::read_to_string(&self.path).expect("it is there"), SECRET);
        let names: Vec<_> = std::fs::read_dir(&self.directory).expect("it is there").flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    /// Ways to name it from inside.
    fn spellings(&self) -> Vec<String> {
        let plain = self.path.to_string_lossy().into_owned();
        let up = "../".repeat(40);
        let roots =
            ["/proc/self/root", "/proc/1/root", "/proc/thread-self/root", "/proc/self/cwd", "/proc/self/task/1/root"];
        let mut all: Vec<String> = roots.iter().map(|root| format!("{root}{plain}")).collect();
        all.extend([
            format!("{up}{plain}"),
            format!("/{up}{plain}"),
            format!("~/{up}{plain}"),
            format!("/usr/./..//{plain}"),
        ]);
        all.extend(["link", "~/directory-link/secret", "~/root-link/secret"].map(str::to_owned));
        all.extend((0..24).map(|number| format!("/proc/self/fd/{number}/../{up}{plain}")));
        all.push(plain);
        all
    }
}

#[tokio::test]
async fn case_07_no_path_of_the_files_api_leads_to_the_host() {
    let arena = Arena::start("7 Files API: paths and links").await;
    let host = HostFile::new(&arena);
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let (file, directory) = (host.path.display(), host.directory.display());
        let links = format!(
            "ln -sfn {file} ~/link; ln -sfn {directory} ~/directory-link; ln -sfn /proc/1/root{directory} ~/root-link"
        );
        arena.attacker.sh_as(who.name(), &links).await.ok();
        for path in host.spellings() {
            assert_ne!(read(&guest, &path).await, Some(SECRET.to_owned()), "{path} was read");
            let listed = guest.list_dir(parent(&path), 1).await.unwrap_or_default();
            assert!(listed.iter().all(|entry| entry.name != "secret"), "{path} was listed");
        }
        arena.table.held(
            format!("read and list a file of the host by {} spellings", host.spellings().len()),
            who,
            "not there",
        );
        for path in host.spellings() {
            // Most of these make a file inside, which is fine.
            let _ = guest.write_file(&path, "changed").await;
            let _ = guest.make_dir(format!("{}/made", parent(&path))).await;
            let _ = guest.move_entry(path.clone(), format!("{}/moved", parent(&path))).await;
            let _ = guest.remove(path.clone()).await;
            host.assert_untouched();
        }
        arena.table.held("write, move and remove it by the same", who, "the host's is untouched");
    }
    arena.finish().await;
}

#[tokio::test]
async fn case_07_odd_names_and_special_files_are_answered_and_never_hang() {
    let arena = Arena::start("7 Files API: odd names and special files").await;
    let socket = arena.platform.node.guest_socket(&arena.attacker.incarnation).expect("it is here");
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        for (name, path) in
            [("NUL", "a\0b".to_owned()), ("a name of 300", "n".repeat(300)), ("a path of 5,000", "d/".repeat(2500))]
        {
            guest.write_file(&path, "x").await.expect_err(name);
            guest.read_file(&path).await.expect_err(name);
            arena.table.held(format!("a path with {name}"), who, "refused");
        }
        let target = format!("/files?username={}&path=%FF%FE%00%0A", who.name());
        let answer = request(&socket, "GET", target.as_bytes(), "").await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        arena.table.held("a path that is not UTF-8", who, "refused");
        let special = "mkdir -p ~/odd && cd ~/odd && rm -rf * && mkfifo fifo && ln -s loop loop && \
            python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' && touch \"$(printf 'new\\nline')\" && touch \"$(printf '\\377')\"";
        arena.attacker.sh_as(who.name(), special).await.ok();
        for path in [
            "odd/fifo",
            "odd/socket",
            "odd/loop",
            "/dev/zero",
            "/dev/full",
            "/dev/tty",
            "/dev/ptmx",
            "/dev/stdin",
            "odd",
        ] {
            guest_refuses(&guest, path).await;
        }
        arena.table.held("read and write FIFOs, sockets, devices, link loops", who, "refused, nothing hangs");
        for path in
            ["/proc/self/mem", "/proc/self/exe", "/proc/self/fd/3", "/proc/self/fd/5", "/proc/sys/kernel/core_pattern"]
        {
            within(guest.write_file(path, "overwritten")).await.expect_err(path);
        }
        arena.table.held("write to the guest's own memory and program", who, "refused");
        assert_eq!(guest.list_dir("odd", 1).await.expect("a list").len(), 5);
        arena.assert_alive().await;
    }
    arena.finish().await;
}

async fn guest_refuses(guest: &Guest, path: &str) {
    assert_eq!(within(read(guest, path)).await, None, "{path} was read");
    within(guest.write_file(path, "x")).await.expect_err(path);
}

/// A guest that hangs is a failure of its own kind.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("the guest answers in time")
}

/// Exchanges a file and a link, and a directory and a link, as fast as it can.
const SWAPPER: &str = r#"exec python3 -c '
import ctypes, os, sys
libc = ctypes.CDLL(None)
directory = sys.argv[1]
os.makedirs("race/d/real", exist_ok=True)
os.chdir("race")
open("file", "w").write("inside")
os.path.lexists("link") or os.symlink(directory + "/secret", "link")
open("d/real/secret", "w").write("inside")
os.path.lexists("d/link") or os.symlink(directory, "d/link")
print("swapping", flush=True)
while True:
    libc.renameat2(-100, b"file", -100, b"link", 2)
    libc.renameat2(-100, b"d/real", -100, b"d/link", 2)
' "#;

#[tokio::test]
async fn case_07_a_rename_race_does_not_lead_out_either() {
    let arena = Arena::start("7 Files API: rename-exchange race").await;
    let host = HostFile::new(&arena);
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let swapper = guest.start(format!("{SWAPPER}{}", host.directory.display()).as_str()).await.expect("it starts");
        for _ in 0..150 {
            for path in ["race/file", "race/link", "race/d/real/secret", "race/d/link/secret"] {
                if let Some(text) = read(&guest, path).await {
                    assert_ne!(text, SECRET);
                }
                let _ = guest.write_file(path, "inside").await;
            }
        }
        host.assert_untouched();
        swapper.handle().signal(isopod_client::guest::Signal::Kill).await.expect("the guest answers");
        arena.attacker.sh_as(who.name(), "rm -rf ~/race").await.ok();
        arena.table.held(
            "exchange files and links while the API reads and writes",
            who,
            "600 times nothing of the host",
        );
    }
    arena.finish().await;
}

/// What of the guest's own is never written, named as the guest itself sees it and as others do.
const OF_THE_GUEST: [&str; 8] = [
    "/proc/self/mem",
    "/proc/self/exe",
    "/proc/self/fd/3",
    "/proc/self/fd/5",
    "/proc/1/mem",
    "/proc/1/exe",
    "/proc/1/fd/3",
    "/proc/1/uid_map",
];

#[tokio::test]
async fn case_07_the_rights_of_root_do_not_reach_the_guest_itself() {
    let arena = Arena::start("7 Files API: links to the guest itself").await;
    for who in Who::BOTH {
        let guest = arena.attacker.guest.clone().with_user(who.name());
        let links: Vec<_> = (0..).zip(OF_THE_GUEST).map(|(n, of_guest)| format!("ln -sfn {of_guest} ~/g{n}")).collect();
        arena.attacker.sh_as(who.name(), &links.join("; ")).await.ok();
        for (number, of_guest) in OF_THE_GUEST.iter().enumerate() {
            within(guest.write_file(&format!("g{number}"), "overwritten")).await.expect_err(of_guest);
        }
        arena.table.held("write to its memory, program and descriptors by links", who, "refused");
        for of_guest in OF_THE_GUEST {
            within(guest.remove(of_guest)).await.expect_err(of_guest);
            within(guest.move_entry(of_guest, "moved")).await.expect_err(of_guest);
            within(guest.move_entry("g0", of_guest)).await.expect_err(of_guest);
        }
        arena.table.held("remove, move and replace them", who, "refused");
        arena.assert_alive().await;
    }
    arena.finish().await;
}

async fn read(guest: &Guest, path: &str) -> Option<String> {
    let bytes = guest.read_file(path).await.ok()?.collect().await.ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn parent(path: &str) -> String {
    Path::new(path).parent().map_or_else(String::new, |parent| parent.to_string_lossy().into_owned())
}
