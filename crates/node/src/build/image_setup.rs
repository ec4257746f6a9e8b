//! Adds what every sandbox needs and an image may lack: the user `user` with a home directory, `/workspace`, `sudo`,
//! and a shell at the path that clients use. E2B does the same to images.

use std::io;
use std::path::Path;

use super::account_files::{add_line, add_shadow, add_to_sudo, write};
use super::accounts::accounts;
use super::view::{FileOwner, FileStat, View, Writer};
use crate::guest_program::guest_program_bytes;

/// Change this whenever this file does something different.
pub(super) const VERSION: &str = "2";

const USER: &str = "user";
const USER_ID: u32 = 1000;

/// Adds what is missing and returns messages for the log. Blocks.
pub(super) fn set_up_image(view: &View) -> io::Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut writer = view.writer()?;
    for (path, mode) in [("/etc", 0o755), ("/home", 0o755), ("/root", 0o700), ("/run", 0o755), ("/tmp", 0o1777)] {
        writer.ensure_directory(Path::new(path), FileOwner::ROOT, mode)?;
    }
    let has_bash = view.exists("/bin/bash");
    let shell = if has_bash { "/bin/bash" } else { "/bin/sh" };
    add_accounts(view, &mut writer, shell)?;
    if !view.exists("/etc/hosts") {
        let text = "127.0.0.1\tlocalhost\n::1\tlocalhost\n";
        write(&mut writer, "/etc/hosts", text, 0o644)?;
    }
    if !view.exists("/usr/bin/sudo") {
        let stat = FileStat { mode: 0o4755, modified: None };
        writer.file(Path::new("/usr/bin/sudo"), &mut guest_program_bytes(), FileOwner::ROOT, stat)?;
    }
    match (has_bash, view.exists("/bin/sh")) {
        (true, _) => {}
        (false, true) => {
            writer.symlink(Path::new("/bin/bash"), "sh".as_ref(), FileOwner::ROOT)?;
            notes.push("the image has no bash; /bin/bash is a link to its sh".to_owned());
        }
        (false, false) => notes.push("the image has no shell; only programs can be run, by their paths".to_owned()),
    }
    Ok(notes)
}

fn add_accounts(view: &View, writer: &mut Writer<'_>, shell: &str) -> io::Result<()> {
    let mut passwd = view.read_small("/etc/passwd");
    let mut group = view.read_small("/etc/group");
    let known: Vec<_> = accounts(&passwd).collect();
    if !known.iter().any(|account| account.uid == 0) {
        add_line(&mut passwd, &format!("root:x:0:0:root:/root:{shell}"));
        add_line(&mut group, "root:x:0:");
    }
    let existing = known.iter().find(|account| account.name == USER);
    let owner = match existing {
        Some(account) => FileOwner { uid: account.uid, gid: account.gid },
        None => {
            let is_free = |id: &u32| !known.iter().any(|account| account.uid == *id || account.gid == *id);
            let id = (USER_ID..60_000).find(is_free).unwrap_or(USER_ID);
            add_line(&mut passwd, &format!("{USER}:x:{id}:{id}::/home/{USER}:{shell}"));
            add_line(&mut group, &format!("{USER}:x:{id}:"));
            add_shadow(view, writer, USER)?;
            FileOwner { uid: id, gid: id }
        }
    };
    if !group.lines().any(|line| line.starts_with("sudo:")) {
        add_line(&mut group, &format!("sudo:x:27:{USER}"));
    } else if existing.is_none() {
        group = add_to_sudo(&group, USER);
    }
    write(writer, "/etc/passwd", &passwd, 0o644)?;
    write(writer, "/etc/group", &group, 0o644)?;
    let home = existing.map_or("/home/user", |account| account.home.as_str());
    writer.ensure_directory(Path::new(home), owner, 0o755)?;
    // Clients use `/home/user` whoever owns it. Repositories are cloned to `/workspace`.
    for path in ["/home/user", "/workspace"] {
        writer.ensure_directory(Path::new(path), owner, 0o755)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_image_gets_the_user_whose_number_may_be_taken() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        std::fs::create_dir_all(&etc).unwrap();
        std::fs::create_dir_all(root.path().join("bin")).unwrap();
        std::fs::write(root.path().join("bin/sh"), "").unwrap();
        std::fs::write(etc.join("passwd"), "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh").unwrap();
        std::fs::write(etc.join("group"), "sudo:x:27:node\n").unwrap();
        let view = View::of_directory(root.path()).unwrap();
        for _ in 0..2 {
            set_up_image(&view).unwrap();
        }
        let passwd = std::fs::read_to_string(etc.join("passwd")).unwrap();
        assert!(passwd.ends_with("\nuser:x:1001:1001::/home/user:/bin/sh\n"), "{passwd}");
        assert_eq!(std::fs::read_to_string(etc.join("group")).unwrap(), "sudo:x:27:node,user\nuser:x:1001:\n");
        for path in ["home/user", "workspace"] {
            assert_eq!(std::fs::metadata(root.path().join(path)).unwrap().uid(), 1001);
        }
        assert!(root.path().join("bin/bash").is_symlink());
    }
}
