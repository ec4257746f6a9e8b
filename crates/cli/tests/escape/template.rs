//! Cases 1 to 3: templates, and layers that come back, with links where directories belong.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use isopod_isolation::launch::LaunchError;
use isopod_wire::node::{NodeApi, PauseMode};

use crate::BINARY;
use crate::arena::Arena;
use crate::table::{Table, Who};
use crate::template_rig::Rig;

/// A directory of the host that a template points to.
struct Decoy(PathBuf);

impl Decoy {
    fn new(below: &Path) -> Self {
        let path = below.join("decoy");
        fs::create_dir(&path).expect("a directory");
        fs::write(path.join("marker"), "untouched").expect("a file");
        Self(path)
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let names: Vec<_> =
            fs::read_dir(&self.0).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["marker"]);
        assert_eq!(fs::read_to_string(self.0.join("marker")).expect("it is there"), "untouched");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a host has it");
        assert!(!mounts.contains(&*self.0.to_string_lossy()), "something is mounted there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_01_a_template_with_links_for_mount_points_is_refused() {
    let table = Table::new("1 Templates whose /dev, /proc, /sys, /tmp … are links to the host");
    let rig = Rig::start(BINARY);
    let decoy = Decoy::new(rig.directory.path());
    for place in ["dev", "proc", "sys", "tmp", "run", "usr"] {
        for (kind, target) in [("absolute", decoy.0.clone()), ("relative", Path::new("../decoy").to_owned())] {
            let template = rig.template(&format!("{place}-{kind}"));
            fs::remove_dir(template.join(place)).expect("an empty directory");
            symlink(target, template.join(place)).expect("a link");
            match rig.launch(&template) {
                Err(LaunchError::Step { step, .. }) => assert!(step.contains("must be a directory"), "{step}"),
                Err(other) => panic!("/{place} as an {kind} link: {other:?}"),
                Ok(_) => panic!("/{place} as an {kind} link was followed"),
            }
            decoy.assert_untouched();
        }
        table.held_for_all(format!("/{place} is a link to a directory of the host"), "refused, nothing followed");
    }
    let good = rig.launch(&rig.template("good")).expect("a good template still works");
    let seen = good.guest().await.run("ls -d /dev/null /proc/self").await.expect("it runs");
    assert!(seen.ended.is_success(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_template_cannot_redirect_masks_and_devices() {
    let table = Table::new("2 Templates whose /dev/null is a link to core_pattern, also swapped in a loop");
    let rig = Rig::start(BINARY);
    let decoy = Decoy::new(rig.directory.path());
    let before = fs::read("/proc/sys/kernel/core_pattern").expect("a host has it");
    let template = rig.template("null");
    for (name, target) in
        [("null", "/proc/sys/kernel/core_pattern"), ("pts", "/proc"), ("shm", "/etc"), ("ptmx", "/dev/sda")]
    {
        symlink(target, template.join("dev").join(name)).expect("a link");
    }
    let sandbox = rig.launch(&template).expect("what is in the template's /dev does not matter");
    let guest = sandbox.guest().await;
    let command = "stat -c '%F %t:%T' /dev/null /dev/zero; stat -f -c %T /dev/pts; echo evil > /dev/null; cat /proc/sys/kernel/core_pattern";
    let seen = guest.run(command).await.expect("it runs").text();
    let expected =
        format!("character special file 1:3\ncharacter special file 1:5\ndevpts\n{}", String::from_utf8_lossy(&before));
    assert_eq!(seen, expected);
    table.held_for_all("/dev/null of the template is a link to core_pattern", "our own /dev is used");

    let stop = AtomicBool::new(false);
    let racing = rig.template("racing");
    std::thread::scope(|scope| {
        scope.spawn(|| swap_until(&stop, &racing, &decoy));
        let outcomes: Vec<bool> = (0..20).map(|_| rig.launch(&racing).is_ok()).collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(outcomes.len(), 20);
    });
    decoy.assert_untouched();
    assert_eq!(fs::read("/proc/sys/kernel/core_pattern").expect("a host has it"), before);
    table.held_for_all("mount points swapped with links while 20 sandboxes start", "refused or not followed");
}

/// Replaces mount points of a template by links and back, as fast as it can.
fn swap_until(stop: &AtomicBool, template: &Path, decoy: &Decoy) {
    let spare = template.with_extension("spare");
    while !stop.load(Ordering::Relaxed) {
        for place in ["dev", "proc", "sys", "tmp"] {
            let path = template.join(place);
            fs::rename(&path, &spare).expect("it is there");
            symlink(&decoy.0, &path).expect("the name is free");
            fs::remove_file(&path).expect("it is there");
            fs::rename(&spare, &path).expect("it is there");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_03_id_maps_are_written_to_procfs_or_not_at_all() {
    let table = Table::new("3 Our own writes to procfs, redirected");
    // A /proc that has a file for every id map that may come, and is none: pids go on from here, or begin anew.
    // Without the disks of servers and tests that run beside this one, which a copy would keep busy.
    let fake = "awk '$1 ~ \"^/dev/loop\" && $2 != \"/\" { print $2 }' /proc/self/mounts | tac | xargs -r -n1 umount -l
mount -t tmpfs none /proc && python3 -c '
import os
os.makedirs(\"/proc/self/ns\"); open(\"/proc/self/ns/mnt\", \"w\").close()
for pid in {*range(1, 10000), *range(os.getpid(), os.getpid() + 30000)}:
    os.makedirs(f\"/proc/{pid}/ns\")
    for name in [\"uid_map\", \"gid_map\", \"ns/user\"]: open(f\"/proc/{pid}/{name}\", \"w\").close()
' && exec \"$0\" __spawner";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", fake, BINARY]);
    let rig = Rig::start_with(command);
    let Err(LaunchError::Step { step, .. }) = rig.launch(&rig.template("plain")) else {
        panic!("a sandbox was made without an id map");
    };
    assert!(step.contains("/proc is something else"), "{step}");
    table.held_for_all("a /proc that is no procfs", "noticed, no sandbox is made");
}

#[tokio::test]
async fn case_01_a_layer_that_comes_back_with_links_is_not_followed() {
    let arena = Arena::start("1 A stopped sandbox whose /etc or resolv.conf is a link to the host").await;
    let decoy = Decoy::new(arena.platform.state().path());
    let target = decoy.0.display();
    let spoils = [
        ("/etc/resolv.conf is a link", format!("ln -sfn {target}/made /etc/resolv.conf")),
        ("/etc is a link", format!("cp -a /etc /etc.old && rm -rf /etc; ln -sfn {target} /etc")),
        ("/etc is gone", "rm -rf /etc".to_owned()),
        ("/etc is a file", "rm -rf /etc; echo > /etc".to_owned()),
    ];
    for who in Who::BOTH {
        for (spoil, command) in &spoils {
            let sandbox = arena.platform.sandbox().await;
            // The shell may not live to tell: it loses its own files.
            let line = if who == Who::User { format!("sudo sh -c '{command}'") } else { command.clone() };
            let _ = sandbox.try_sh_as(who.name(), &line).await;
            let node = &arena.platform.node;
            node.pause(&sandbox.incarnation, PauseMode::Filesystem).await.expect("it stops");
            let again = node.resume(&sandbox.incarnation).await.unwrap_or_else(|error| panic!("{spoil}: {error:?}"));
            decoy.assert_untouched();
            node.kill(&again).await.expect("it ends");
            arena.table.held(format!("resumed: {spoil}"), who, "not followed");
        }
    }
    arena.finish().await;
}
