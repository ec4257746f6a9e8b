//! Layers that are packed and read again: by [`crate::unpack`], and by tar, which we did not write.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use rustix::fs::{XattrFlags, mknodat};

use super::*;
use crate::unpack::{Bounds, Kind, OPAQUE_MARK, unpack};

fn packed(layers: &[&Path], below: Below) -> Result<Vec<u8>, PackError> {
    let mut archive = Vec::new();
    pack(layers, below, &mut archive, &Quota::new(Bounds::default()))?;
    Ok(archive)
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn hide(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn make_opaque(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    rustix::fs::setxattr(path, OPAQUE_MARK, b"y", XattrFlags::empty()).unwrap();
}

/// The names in an archive, in its order.
fn names(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    let name =
        |entry: io::Result<tar::Entry<'_, &[u8]>>| String::from_utf8_lossy(&entry.unwrap().path_bytes()).into_owned();
    archive.entries().unwrap().map(name).collect()
}

/// What can be known of every file below a directory, by its path.
fn picture(top: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let contents = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        let target = std::fs::read_link(&path).unwrap_or_default();
        let mut value = [0; 64];
        let mut attribute = |name: &str| {
            let length = rustix::fs::lgetxattr(&path, name, &mut value).unwrap_or_default();
            value[..length].to_vec()
        };
        let attributes = (attribute("user.colour"), attribute("security.capability"));
        let names = if meta.is_dir() { 0 } else { meta.nlink() };
        let owner = (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.rdev(), names);
        if path != top {
            let inner = path.strip_prefix(top).unwrap().to_owned();
            found.insert(inner, format!("{owner:?} {target:?} {attributes:?} {contents:?}"));
        }
        if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// A layer with one of everything that a layer can have.
fn full_layer(root: &Path) {
    write(&root.join("usr/bin/tool"), "#!/bin/sh\n");
    std::fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/again")).unwrap();
    chown(root.join("usr/bin/tool"), Some(0), Some(50)).unwrap();
    std::fs::set_permissions(root.join("usr/bin/tool"), PermissionsExt::from_mode(0o4755)).unwrap();
    // cap_net_raw=ep
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    write(&root.join("usr/bin/ping"), "ping");
    rustix::fs::setxattr(root.join("usr/bin/ping"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(root.join("usr"), "user.colour", b"red", XattrFlags::empty()).unwrap();
    symlink("/etc/shadow", root.join("usr/link")).unwrap();
    symlink("x".repeat(300), root.join("usr/long-link")).unwrap();
    std::os::unix::fs::lchown(root.join("usr/link"), Some(7), Some(8)).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    write(&root.join("d".repeat(120)).join("n".repeat(200)), "deep");
    let odd = std::ffi::OsStr::from_bytes(b"not-\xff-utf8 \n");
    write(&root.join(odd), "odd");
    write(&root.join("empty"), "");
    std::fs::create_dir(root.join("tmp")).unwrap();
    std::fs::set_permissions(root.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
}

#[test]
fn what_is_packed_is_unpacked_as_it_was_by_us_and_by_tar() {
    let scratch = tempfile::tempdir().unwrap();
    let (layer, ours, theirs) =
        (scratch.path().join("layer"), scratch.path().join("ours"), scratch.path().join("theirs"));
    for directory in [&layer, &ours, &theirs] {
        std::fs::create_dir(directory).unwrap();
    }
    full_layer(&layer);
    let archive = packed(&[&layer], Below::Nothing).unwrap();
    assert_eq!(archive, packed(&[&layer], Below::Nothing).unwrap(), "the same files give the same bytes");
    unpack(&archive[..], &ours, Kind::Layer, Bounds::default()).unwrap();
    assert_eq!(picture(&ours), picture(&layer));

    let file = scratch.path().join("layer.tar");
    std::fs::write(&file, &archive).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf"]).arg(&file).arg("-C").arg(&theirs);
    let output = tar.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(picture(&theirs), picture(&layer));
}

#[test]
fn what_hides_files_of_lower_layers_becomes_marks() {
    let scratch = tempfile::tempdir().unwrap();
    let layer = scratch.path();
    hide(&layer.join("etc/gone"));
    make_opaque(&layer.join("etc/fresh"));
    write(&layer.join("etc/fresh/new"), "new");
    let archive = packed(&[layer], Below::Layers).unwrap();
    assert_eq!(names(&archive), ["etc/", "etc/.wh.gone", "etc/fresh/", "etc/fresh/.wh..wh..opq", "etc/fresh/new"]);
    // In the lowest layer there is nothing to hide.
    assert_eq!(names(&packed(&[layer], Below::Nothing).unwrap()), ["etc/", "etc/fresh/", "etc/fresh/new"]);

    let again = tempfile::tempdir().unwrap();
    unpack(&archive[..], again.path(), Kind::Layer, Bounds::default()).unwrap();
    let hidden = std::fs::symlink_metadata(again.path().join("etc/gone")).unwrap();
    assert_eq!((FileType::from_raw_mode(hidden.mode()), hidden.rdev()), (FileType::CharacterDevice, 0));
    assert!(rustix::fs::getxattr(again.path().join("etc/fresh"), OPAQUE_MARK, &mut [0; 8]).is_ok());
}

/// Compared with what the kernel shows of the same layers.
#[test]
fn layers_are_combined_as_the_kernel_combines_them() {
    let scratch = tempfile::tempdir().unwrap();
    let layers: Vec<PathBuf> = ["top", "middle", "bottom"].map(|name| scratch.path().join(name)).to_vec();
    let [top, middle, bottom] = &layers[..] else { unreachable!() };
    for name in ["both", "gone", "dir-then-file", "dir/low", "covered/low", "back/low", "sub/a/low"] {
        write(&bottom.join(name), "bottom");
    }
    std::fs::create_dir_all(middle.join("back")).unwrap();
    write(&middle.join("both"), "middle");
    write(&middle.join("dir/middle"), "middle");
    make_opaque(&middle.join("covered"));
    write(&middle.join("covered/middle"), "middle");
    std::fs::hard_link(middle.join("dir/middle"), middle.join("dir/linked")).unwrap();
    hide(&middle.join("back/low"));
    hide(&middle.join("sub/a"));
    write(&middle.join("dir-then-file"), "a file");
    hide(&top.join("gone"));
    write(&top.join("back/low"), "it is back");
    write(&top.join("sub/a/high"), "high");
    write(&top.join("dir-then-file/inner"), "a directory again");
    write(&top.join("covered/top"), "top");
    hide(&top.join("dir/linked"));
    std::fs::set_permissions(top.join("covered"), PermissionsExt::from_mode(0o700)).unwrap();

    let (ours, shown) = (scratch.path().join("ours"), scratch.path().join("shown"));
    std::fs::create_dir(&ours).unwrap();
    std::fs::create_dir(&shown).unwrap();
    let paths: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
    let archive = packed(&paths, Below::Nothing).unwrap();
    assert!(!names(&archive).iter().any(|name| name.contains(".wh.")), "{:?}", names(&archive));
    unpack(&archive[..], &ours, Kind::Layer, Bounds::default()).unwrap();

    let script = r#"mount -t overlay overlay -o "lowerdir=$1:$2:$3" "$4" && cp -a "$4/." "$5""#;
    let copied = scratch.path().join("copied");
    std::fs::create_dir(&copied).unwrap();
    let mut kernel = Command::new("unshare");
    kernel.args(["--mount", "sh", "-ec", script, "sh"]).args(&paths).arg(&shown).arg(&copied);
    let output = kernel.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let without_links = |top: &Path| -> BTreeMap<PathBuf, String> {
        // The kernel counts names that are hidden.
        let shown = picture(top).into_iter().filter(|(path, _)| path != Path::new("dir/middle"));
        shown.collect()
    };
    assert_eq!(without_links(&ours), without_links(&copied));
    assert_eq!(std::fs::read_to_string(ours.join("dir/middle")).unwrap(), "middle");
}

#[test]
fn what_an_image_cannot_express_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let layer = scratch.path().join("layer");
    write(&layer.join("a/.wh.b"), "");
    assert!(matches!(packed(&[&layer], Below::Layers), Err(PackError::Reserved(path)) if path == Path::new("a/.wh.b")));
    std::fs::remove_file(layer.join("a/.wh.b")).unwrap();
    rustix::fs::setxattr(layer.join("a"), "trusted.overlay.redirect", b"/x", XattrFlags::empty()).unwrap();
    assert!(matches!(packed(&[&layer], Below::Layers), Err(PackError::Redirect(path)) if path == Path::new("a")));
    std::fs::create_dir_all(layer.join("d/".repeat(MAX_DEPTH + 1))).unwrap();
    rustix::fs::removexattr(layer.join("a"), "trusted.overlay.redirect").unwrap();
    assert!(matches!(packed(&[&layer], Below::Layers), Err(PackError::Depth)));
}

#[test]
fn no_more_is_packed_than_the_quota_allows() {
    let scratch = tempfile::tempdir().unwrap();
    write(&scratch.path().join("large"), &"x".repeat(1000));
    for bounds in [Bounds { bytes: 999, entries: 10 }, Bounds { bytes: 1000, entries: 0 }] {
        let refused = pack(&[scratch.path()], Below::Nothing, io::sink(), &Quota::new(bounds)).unwrap_err();
        assert!(matches!(refused, PackError::Quota(_)), "{refused}");
    }
    assert!(matches!(packed(&[&scratch.path().join("none")], Below::Nothing), Err(PackError::Entry { .. })));
}
