//! Root file systems of other distributions, with this machine's kernel below them.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use isopod_testkit::{Finished, Residue};

/// A distribution.
#[derive(Clone, Copy)]
pub(crate) struct Distribution {
    suite: &'static str,
    /// As its os-release says.
    pub(crate) name: &'static str,
    archive: Archive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Archive {
    Debian,
    Ubuntu,
}

const DEBIAN_13: Distribution = Distribution { suite: "trixie", name: "Debian GNU/Linux 13", archive: Archive::Debian };
const ALL: [Distribution; 4] = [
    DEBIAN_13,
    Distribution { suite: "bookworm", name: "Debian GNU/Linux 12", archive: Archive::Debian },
    Distribution { suite: "jammy", name: "Ubuntu 22.04", archive: Archive::Ubuntu },
    Distribution { suite: "noble", name: "Ubuntu 24.04", archive: Archive::Ubuntu },
];

const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";
/// Debian does not ship Ubuntu's keys, so they come from its archive, and are the ones that we know.
const UBUNTU_KEYS: &str = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb";
const UBUNTU_KEYS_SHA256: &str = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8";

/// What every root has beyond the minimum.
const PACKAGES: &str = "btrfs-progs,ca-certificates";

/// Makes the root the only thing that the script sees, apart from the kernel's own file systems, the claims on slots, which
/// all state directories of a kernel must share, and one file or directory of the test's. A mount of its own, not a chroot:
/// the spawner pivots.
const ENTER: &str = r#"
set -e
root=$1 given=$2 place=$3
mkdir -p /run/isopod "$root/run/isopod" "$root/mnt"
mount --make-rprivate /
mount --bind "$root" "$root"
for directory in proc sys dev; do mount --rbind "/$directory" "$root/$directory"; done
mount --bind /run/isopod "$root/run/isopod"
# The names and authorities of this machine's network.
for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$file" ] && [ -e "$root$file" ]; then mount --bind "$file" "$root$file"; fi
done
if [ -d "$given" ]; then mkdir -p "$root$place"; else mkdir -p "$root${place%/*}"; touch "$root$place"; fi
mount --bind "$given" "$root$place"
cd "$root"
pivot_root . mnt
umount -l /mnt
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/isopod HOME=/root exec sh -ec "$4"
"#;

const WITHOUT_OTHER_DISKS: &str = r#"
awk '$1 ~ "^/dev/loop" { print $2 }' /proc/self/mounts | xargs -r -n 1 umount -l
exec "$@"
"#;

/// Runs what calls mmdebstrap, which works for a minute in a copy of all mounts: the images of other state directories would
/// stay busy for as long.
pub(crate) fn without_other_disks(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITHOUT_OTHER_DISKS, "sh", program]);
    command
}

/// Where userlands are kept between runs.
pub(crate) fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("userlands");
    std::fs::create_dir_all(&directory).expect("a directory of our own");
    directory
}

/// Whether tests take their time.
pub(crate) fn is_full() -> bool {
    std::env::var_os("ISOPOD_FULL").is_some()
}

/// Debian 13, which has the newest C library and is the most unlike; with `ISOPOD_FULL=1` all of them.
pub(crate) fn distributions() -> impl Iterator<Item = Distribution> {
    let count = if is_full() { ALL.len() } else { 1 };
    ALL.into_iter().take(count)
}

static MAKING: Mutex<()> = Mutex::new(());

/// A root file system.
pub(crate) struct Userland {
    root: PathBuf,
    /// A directory that goes with the test.
    removed: Option<PathBuf>,
}

impl Distribution {
    /// The root that is kept between runs. Tests leave it as it was.
    pub(crate) fn kept(self) -> Userland {
        Userland { root: self.root(PACKAGES, ""), removed: None }
    }

    /// A root of the test's own, with Python, to install packages in.
    pub(crate) fn fresh(self, test: &str) -> Userland {
        let from = self.root(&format!("{PACKAGES},python3-venv"), "-python");
        let root = from.with_file_name(format!("{}-{test}-{}", self.suite, std::process::id()));
        let copied: Finished = Command::new("cp").arg("-a").arg(&from).arg(&root).output().expect("coreutils").into();
        copied.ok();
        Userland { removed: Some(root.clone()), root }
    }

    /// A root with these packages, made where it is missing.
    fn root(self, packages: &str, suffix: &str) -> PathBuf {
        let directory = directory();
        let root = directory.join(format!("{}{suffix}", self.suite));
        // Tests that run at once want the same one.
        let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if !root.exists() {
            let unfinished = directory.join(format!("{}{suffix}.new", self.suite));
            let _ = std::fs::remove_dir_all(&unfinished);
            self.bootstrap(&directory, &unfinished, packages);
            std::fs::rename(&unfinished, &root).expect("both are ours");
        }
        root
    }

    fn bootstrap(self, directory: &Path, root: &Path, packages: &str) {
        let mut command = without_other_disks("mmdebstrap");
        command.args(["--mode=root", "--variant=minbase"]).arg(format!("--include={packages}"));
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
}

impl Userland {
    /// A root that the test has put below this directory, which goes with the test.
    pub(crate) fn at(root: PathBuf, directory: PathBuf) -> Self {
        Self { root, removed: Some(directory) }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Runs a script there, in a mount namespace that ends with it. It finds the file or directory `given` at `place`.
    pub(crate) fn run(&self, given: &Path, place: &str, script: &str) -> Finished {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ENTER, "sh"]).arg(&self.root).arg(given).arg(place).arg(script);
        command.stdin(std::process::Stdio::null()).output().expect("util-linux is installed").into()
    }

    /// Whether a path exists there.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.root.join(path.trim_start_matches('/')).symlink_metadata().is_ok()
    }

    pub(crate) fn assert_nothing_left(&self) {
        let state = self.root.join("var/lib/isopod");
        let residue = Residue::of(&state);
        assert!(residue.is_empty(), "{residue:?}");
        assert!(!state.exists(), "{} is still there", state.display());
    }
}

impl Drop for Userland {
    fn drop(&mut self) {
        if let Some(directory) = &self.removed {
            // Not across mounts: a test that failed may have left one.
            let _ = Command::new("rm").args(["-rf", "--one-file-system"]).arg(directory).status();
        }
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
