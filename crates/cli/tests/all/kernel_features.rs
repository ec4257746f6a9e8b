//! Parts of the kernel that a sandbox has only if it is allowed to: programs that need them, and that others go without.

use crate::served::Served;

use isopod_testkit::{Platform, StateDir, spec};
use isopod_wire::KernelFeatures;
use isopod_wire::node::{NodeApi, PauseMode, SandboxSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// A line of shell that prints only what counts.
fn run(state: &StateDir, options: &[&str], script: &str) -> String {
    let script = format!("set -e\n{script}");
    state.isopod().run(&[&["run"], options, &["--", "bash", "-c", &script]].concat()).ok()
}

const INSTALL: &str = "sudo apt-get update -qq; install() { sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends \"$@\" >/tmp/log 2>&1 || cat /tmp/log; }";

#[test]
fn a_sandbox_has_neither_unless_it_is_allowed_to() {
    let state = StateDir::new(BINARY);
    let tried = "unshare --user true 2>/dev/null || echo no namespaces; ls /dev/fuse 2>/dev/null || echo no fuse; \
        sudo mount -t tmpfs none /mnt 2>/dev/null || echo no mounts";
    for options in [&["--memory", "1G"][..], &["--allow", "userns"], &["--allow", "fuse"]] {
        let told = run(&state, options, tried);
        let (userns, fuse) = (options[1] == "userns", options[1] == "fuse");
        assert_eq!(told.contains("no namespaces"), !userns, "{options:?}: {told}");
        assert_eq!(told.contains("no fuse"), !fuse, "{options:?}: {told}");
        assert_eq!(told.contains("no mounts"), !fuse, "{options:?}: {told}");
    }
    let unknown = state.isopod().run(&["run", "--allow", "bpf", "--", "true"]);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.stderr().contains("there are userns and fuse"), "{}", unknown.stderr());
    state.assert_nothing_left();
}

/// The operator lists a template. Code that knows nothing of features then has them, and a client can do without.
#[test]
fn sandboxes_of_a_listed_template_have_its_features_without_asking() {
    let (state, settings) = (StateDir::new(BINARY), tempfile::NamedTempFile::new().unwrap());
    let lists = "[sandbox.allow]\n'*' = ['userns']\n[sandbox.allow_templates]\nbase = ['userns']\n";
    std::fs::write(settings.path(), lists).unwrap();
    let config = settings.path().to_str().unwrap();
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--config", config]);
    let tried = "unshare --user true && echo yes || echo no";
    for (options, expected) in [(&[][..], "yes\n"), (&["--metadata", "isopod.allow="][..], "no\n")] {
        let id = server.create(options);
        assert_eq!(server.run(&["exec", &id, "--", "sh", "-c", tried]).ok(), expected, "{options:?}");
    }
    server.run(&["kill", "--all"]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn bubblewrap_works_with_userns() {
    let state = StateDir::new(BINARY);
    let script = format!(
        "{INSTALL}
        install bubblewrap
        wrap='bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --tmpfs /tmp'
        $wrap --ro-bind /proc /proc sh -c 'id -un; touch /etc/x 2>/dev/null || echo read-only; ls /tmp | wc -l'
        $wrap --proc /proc true 2>/dev/null && echo a new proc || echo no new proc"
    );
    assert_eq!(run(&state, &["--allow", "userns"], &script), "user\nread-only\n0\nno new proc\n");
    state.assert_nothing_left();
}

#[test]
fn chromium_uses_its_own_sandbox_with_userns() {
    if !std::path::Path::new("/usr/bin/chromium").exists() {
        return eprintln!("skipped: this host has no chromium");
    }
    let state = StateDir::new(BINARY);
    let script = "echo '<p>hello</p>' >/tmp/page.html; \
        timeout 100 chromium --headless --disable-gpu --dump-dom file:///tmp/page.html 2>/tmp/errors | grep -o 'hello' || \
        grep -o 'No usable sandbox' /tmp/errors";
    assert_eq!(run(&state, &["--memory", "2G"], script), "No usable sandbox\n");
    assert_eq!(run(&state, &["--memory", "2G", "--allow", "userns"], script), "hello\n");
    state.assert_nothing_left();
}

#[test]
fn what_is_masked_stays_masked_in_namespaces_inside() {
    let state = StateDir::new(BINARY);
    let script = "unshare --user --map-root-user --mount sh -c '
        umount /proc/kcore 2>/dev/null && echo unmasked
        mount -o remount,rw,bind /proc/sys 2>/dev/null && echo writable
        mount -t proc none /mnt 2>/dev/null && echo a new proc
        echo 1 2>/dev/null >/proc/sys/vm/drop_caches && echo written
        mknod /tmp/disk b 8 0 2>/dev/null && echo a device
        mount -t tmpfs none /mnt && echo own mounts'
        for i in $(seq 400); do unshare --user sleep 60 2>/dev/null & done; wait -n || echo limited; pkill sleep";
    assert_eq!(run(&state, &["--allow", "userns"], script), "own mounts\nlimited\n");
    state.assert_nothing_left();
}

#[test]
fn fuse_programs_work_with_fuse() {
    let state = StateDir::new(BINARY);
    let script = format!(
        "{INSTALL}
        install bindfs sshfs openssh-server
        mkdir -p ~/a ~/b ~/.ssh; echo seen >~/a/file
        bindfs --no-allow-other ~/a ~/b; cat ~/b/file; fusermount3 -u ~/b || fusermount -u ~/b; ls ~/b | wc -l
        ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
        sudo mkdir -p /run/sshd; pgrep -x sshd >/dev/null || sudo /usr/sbin/sshd
        sshfs -o StrictHostKeyChecking=no localhost:a ~/b; cat ~/b/file; echo more >~/b/more; cat ~/a/more"
    );
    assert_eq!(run(&state, &["--allow", "fuse"], &script), "seen\n0\nseen\nmore\n");
    let remount = "sudo mount -o remount,rw /dev 2>/dev/null && echo remounted; \
        sudo mount --bind /tmp /mnt 2>/dev/null && echo bound; echo done";
    assert_eq!(run(&state, &["--allow", "fuse"], remount), "done\n");
    state.assert_nothing_left();
}

/// As much of S3 as s3fs needs, on port 9000: a bucket in memory.
const S3_SERVER: &str = include_str!("../../../../tests/programs/bucket.py");

#[test]
fn s3fs_works_with_fuse() {
    let state = StateDir::new(BINARY);
    let script = format!(
        "{INSTALL}
        install s3fs
        cat >/tmp/s3.py <<'PYTHON'
{S3_SERVER}PYTHON
        python3 /tmp/s3.py >/tmp/s3.log 2>&1 &
        ask() {{ curl -s --noproxy '*' localhost:9000/bucket/$1; }}
        for i in $(seq 200); do ask >/dev/null && break; sleep 0.05; done
        mkdir ~/s3; echo id:secret >~/passwd; chmod 600 ~/passwd
        s3fs bucket ~/s3 -o url=http://127.0.0.1:9000,use_path_request_style,passwd_file=$HOME/passwd
        echo written >~/s3/file; mkdir ~/s3/d; cp ~/s3/file ~/s3/d/copy
        ask file; cat ~/s3/d/copy; ls ~/s3
        fusermount -u ~/s3 || fusermount3 -u ~/s3; ls ~/s3 | wc -l"
    );
    assert_eq!(run(&state, &["--allow", "fuse"], &script), "written\nwritten\nd\nfile\n0\n");
    state.assert_nothing_left();
}

/// One thread serves a FUSE file system and never answers, the other one waits for it. Not even a kill ends that: the threads
/// share the descriptor whose end would. The node aborts the connection.
const WAITS_FOR_ITSELF: &str = r#"
mkdir stuck
sudo python3 - <<'PYTHON' >/dev/null 2>~/log &
import ctypes, os, struct, threading

libc = ctypes.CDLL(None, use_errno=True)
device = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={device},rootmode=40000,user_id=0,group_id=0'.encode()
if libc.mount(b'stuck', b'/home/user/stuck', b'fuse', 0, options) != 0:
    raise OSError(ctypes.get_errno(), 'mount')

def serve():
    unique = struct.unpack_from('<IIQ', os.read(device, 1 << 20))[2]
    init = struct.pack('<IIIIHHIIHHI7I', 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, *[0] * 7)
    os.write(device, struct.pack('<IiQ', 16 + len(init), 0, unique) + init)
    os.read(device, 1 << 20)
    open('/tmp/waiting', 'w').close()
    threading.Event().wait()

threading.Thread(target=serve, daemon=True).start()
os.stat('/home/user/stuck/file')
PYTHON
for i in $(seq 200); do [ -e /tmp/waiting ] && break; sleep 0.05; done
[ -e /tmp/waiting ] && echo stuck || cat log
"#;

#[test]
fn a_sandbox_that_waits_for_its_own_file_system_can_be_ended() {
    let state = StateDir::new(BINARY);
    assert_eq!(run(&state, &["--allow", "fuse"], WAITS_FOR_ITSELF), "stuck\n");
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_lasts_through_a_resume_and_comes_from_no_pool() {
    let platform = Platform::start(BINARY).await;
    let features = KernelFeatures { userns: true, fuse: false };
    let sandbox = platform.sandbox_of(SandboxSpec { features, ..spec() }).await;
    let tried = "unshare --user true && echo yes || echo no";
    assert_eq!(sandbox.sh(tried).await.ok(), "yes\n");
    assert_eq!(platform.sandbox().await.sh(tried).await.ok(), "no\n");
    platform.node.pause(&sandbox.incarnation, PauseMode::Filesystem).await.unwrap();
    let resumed = platform.find(&platform.node.resume(&sandbox.incarnation).await.unwrap());
    assert_eq!(resumed.sh(tried).await.ok(), "yes\n");
    platform.finish().await;
}
