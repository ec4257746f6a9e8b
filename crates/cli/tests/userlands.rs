//! Other distributions than the one this was built on: `isopod` runs on root file systems made by mmdebstrap, with this
//! machine's kernel below them, and makes its sandboxes of them.
//!
//! By default Debian 13, which has the newest C library and is the most unlike. `ISOPOD_FULL=1` takes all. They are kept
//! between runs. Needs mmdebstrap and the archives.

use std::path::{Path, PathBuf};
use std::process::Command;

use isopod_testkit::{Finished, Residue, require_root};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

struct Userland {
    suite: &'static str,
    /// As its os-release says.
    name: &'static str,
    archive: Archive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Archive {
    Debian,
    Ubuntu,
}

const DEBIAN_13: Userland = Userland { suite: "trixie", name: "Debian GNU/Linux 13", archive: Archive::Debian };
const ALL: [Userland; 4] = [
    DEBIAN_13,
    Userland { suite: "bookworm", name: "Debian GNU/Linux 12", archive: Archive::Debian },
    Userland { suite: "jammy", name: "Ubuntu 22.04", archive: Archive::Ubuntu },
    Userland { suite: "noble", name: "Ubuntu 24.04", archive: Archive::Ubuntu },
];

const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";
/// Debian does not ship Ubuntu's keys, so they come from its archive, and are the ones that we know.
const UBUNTU_KEYS: &str = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb";
const UBUNTU_KEYS_SHA256: &str = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8";

/// Makes the root the only thing that the script sees, apart from the kernel's own file systems and the claims on slots,
/// which all state directories of a kernel must share. A mount of its own, not a chroot: the spawner pivots.
const ENTER: &str = r#"
set -e
root=$1 binary=$2
mkdir -p /run/isopod "$root/opt/isopod" "$root/run/isopod" "$root/mnt"
mount --make-rprivate /
mount --bind "$root" "$root"
for directory in proc sys dev; do mount --rbind "/$directory" "$root/$directory"; done
mount --bind /run/isopod "$root/run/isopod"
touch "$root/opt/isopod/isopod"
mount --bind "$binary" "$root/opt/isopod/isopod"
cd "$root"
pivot_root . mnt
umount -l /mnt
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/isopod exec sh -ec "$3"
"#;

/// mmdebstrap works for a minute in a copy of all mounts, and the images of other state directories would stay busy for
/// as long.
const BOOTSTRAP: &str = r#"
awk '$1 ~ "^/dev/loop" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l
exec mmdebstrap "$@"
"#;

impl Userland {
    /// The root file system, made where it is missing.
    fn root(&self) -> PathBuf {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("userlands");
        let root = directory.join(self.suite);
        if !root.exists() {
            std::fs::create_dir_all(&directory).expect("a directory of our own");
            let unfinished = directory.join(format!("{}.new", self.suite));
            let _ = std::fs::remove_dir_all(&unfinished);
            self.bootstrap(&directory, &unfinished);
            std::fs::rename(&unfinished, &root).expect("both are ours");
        }
        root
    }

    fn bootstrap(&self, directory: &Path, root: &Path) {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", BOOTSTRAP, "sh"]);
        command.args(["--mode=root", "--variant=minbase", "--include=btrfs-progs,ca-certificates"]);
        let archive = match self.archive {
            Archive::Debian => debian_archive(),
            Archive::Ubuntu => {
                command.arg("--components=main,universe").arg("--keyring").arg(ubuntu_keys(directory));
                UBUNTU.to_owned()
            }
        };
        let made = command.arg(self.suite).arg(root).arg(archive).output().expect("util-linux is installed");
        assert!(made.status.success(), "{}: {}", self.suite, String::from_utf8_lossy(&made.stderr));
    }

    /// Runs a script there, in a mount namespace that ends with it.
    fn run(&self, script: &str) -> Finished {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ENTER, "sh"]).arg(self.root()).arg(BINARY).arg(script);
        command.output().expect("util-linux is installed").into()
    }
}

/// The one that this machine uses.
fn debian_archive() -> String {
    let listed = Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]).output().expect("apt");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let main = listed.lines().find(|line| line.trim_end_matches('/').ends_with("/debian"));
    main.unwrap_or("http://deb.debian.org/debian").to_owned()
}

fn ubuntu_keys(directory: &Path) -> PathBuf {
    let keys = directory.join("ubuntu-keys");
    let script = format!(
        "set -e; mkdir -p {keys}; cd {keys}; curl -fsS -o keys.deb {UBUNTU}/{UBUNTU_KEYS}; \
         echo '{UBUNTU_KEYS_SHA256}  keys.deb' | sha256sum -c; dpkg-deb -x keys.deb .",
        keys = keys.display()
    );
    let fetched: Finished = Command::new("sh").args(["-c", &script]).output().expect("a shell").into();
    fetched.ok();
    keys.join("usr/share/keyrings/ubuntu-archive-keyring.gpg")
}

fn userlands() -> impl Iterator<Item = Userland> {
    let count = if std::env::var_os("ISOPOD_FULL").is_some() { ALL.len() } else { 1 };
    ALL.into_iter().take(count)
}

fn assert_nothing_left(userland: &Userland) {
    let state = userland.root().join("var/lib/isopod");
    let residue = Residue::of(&state);
    assert!(residue.is_empty(), "{}: {residue:?}", userland.name);
    assert!(!state.exists(), "{} is still there", state.display());
}

#[test]
fn sandboxes_are_made_of_each_distribution_by_the_same_program() {
    require_root();
    for userland in userlands() {
        let script = "isopod doctor >&2
            isopod run --memory 256M --disk 64M -- sh -c '. /etc/os-release; echo $PRETTY_NAME; sudo id -u; grep -c MemTotal:.*262144 /proc/meminfo'
            isopod run -- sh -c 'echo changed | sudo tee /usr/share/changed && cat /usr/share/changed'
            test ! -e /usr/share/changed
            isopod uninstall --yes >&2";
        let output = userland.run(script).ok();
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with(userland.name), "{output}");
        assert_eq!(lines[1..], ["0", "1", "changed", "changed"], "{}", userland.name);
        assert_nothing_left(&userland);
    }
}

#[test]
fn a_frozen_base_is_a_copy_that_later_changes_of_the_host_do_not_reach() {
    require_root();
    for userland in userlands() {
        let script = "trap 'rm -f /usr/share/isopod-late' EXIT
            rm -f /usr/share/isopod-late
            isopod run --frozen -- sh -c '. /etc/os-release; echo $PRETTY_NAME; whoami'
            echo late > /usr/share/isopod-late
            isopod run --frozen -- sh -c 'cat /usr/share/isopod-late 2>/dev/null || echo frozen'
            isopod run -- cat /usr/share/isopod-late
            isopod run --frozen -- sh -c 'echo mine > /tmp/x; sudo cp /tmp/x /usr/bin/x && cat /usr/bin/x'
            isopod uninstall --yes >&2";
        let output = userland.run(script).ok();
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with(userland.name), "{output}");
        assert_eq!(lines[1..], ["user", "frozen", "late", "mine"], "{}", userland.name);
        assert_nothing_left(&userland);
    }
}
