//! A real registry on loopback (`docker-registry` of Debian), and small images in it that are made of this host's own
//! programs.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isopod_image::Digest;
use serde_json::json;

/// A registry that ends with the test.
pub(crate) struct Registry {
    pub(crate) address: String,
    directory: tempfile::TempDir,
    child: Child,
    login: Option<(String, String)>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// Starts one; with a name and password, everything in it wants them.
    pub(crate) fn start(login: Option<(&str, &str)>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let auth = login.map_or_else(String::new, |(user, password)| {
            let script =
                "import crypt,sys; print(crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))";
            let hash =
                Command::new("/usr/bin/python3").args(["-W", "ignore", "-c", script, password]).output().unwrap();
            let file = directory.path().join("htpasswd");
            std::fs::write(&file, format!("{user}:{}", String::from_utf8_lossy(&hash.stdout))).unwrap();
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", file.display())
        });
        let config = directory.path().join("config.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n{auth}",
            directory.path().join("data").display()
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed: apt-get install docker-registry");
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let registry = Self { address, directory, child, login };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&registry.address).is_err() {
            assert!(Instant::now() < deadline, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Puts an image of these layers (tar archives) into it.
    pub(crate) fn push(&self, name: &str, layers: &[Vec<u8>], config: serde_json::Value) {
        let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string().into_bytes();
        let layers: Vec<Vec<u8>> = layers.iter().map(|layer| gzip(layer)).collect();
        let describe = |kind: &str, bytes: &[u8]| {
            self.push_blob(name, bytes);
            json!({ "mediaType": kind, "digest": Digest::of(bytes).as_str(), "size": bytes.len() })
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter()
                .map(|layer| describe("application/vnd.oci.image.layer.v1.tar+gzip", layer))
                .collect::<Vec<_>>(),
        });
        let url = format!("http://{}/v2/{name}/manifests/latest", self.address);
        let header = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        self.curl(&["-X", "PUT", "-H", header, &url], manifest.to_string().as_bytes());
    }

    fn push_blob(&self, name: &str, bytes: &[u8]) {
        let url = format!("http://{}/v2/{name}/blobs/uploads/", self.address);
        let head = self.curl(&["-X", "POST", "-D", "-", "-o", "/dev/null", &url], b"");
        let location = head.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a place to put it").trim();
        let url = format!("{location}&digest={}", Digest::of(bytes));
        self.curl(&["-X", "PUT", "-H", "Content-Type: application/octet-stream", &url], bytes);
    }

    fn curl(&self, arguments: &[&str], body: &[u8]) -> String {
        let file = self.directory.path().join("body");
        std::fs::write(&file, body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", "--noproxy", "*", "--data-binary"]).arg(format!("@{}", file.display()));
        if let Some((user, password)) = &self.login {
            command.args(["-u", &format!("{user}:{password}")]);
        }
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Changes every layer in the registry's own files, without changing its name or length.
    pub(crate) fn spoil(&self) {
        let mut find = Command::new("find");
        find.arg(self.directory.path().join("data")).args(["-name", "data", "-size", "+20k"]);
        let mut found = found_output(&mut find);
        assert!(!found.is_empty());
        for path in found.drain(..) {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

fn found_output(command: &mut Command) -> Vec<PathBuf> {
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    pipe(Command::new("gzip").args(["-1", "-n", "-c"]), bytes)
}

fn pipe(command: &mut Command, bytes: &[u8]) -> Vec<u8> {
    let mut input = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut input, bytes).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    command.stdin(input).output().unwrap().stdout
}

/// A root file system with a shell and a few programs of this host, as a layer.
pub(crate) fn small_system(marker: &str) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let mut programs = vec!["sh", "cat", "ls", "id", "mkdir", "rm", "touch", "sleep", "chmod"];
    programs.extend(["chown", "find", "ln", "mkfifo", "mv", "sha256sum", "sort", "xargs"]);
    for directory in ["bin", "lib64", "etc", "tmp", "dir"] {
        std::fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    for program in programs {
        let path = std::fs::canonicalize(Path::new("/bin").join(program)).unwrap();
        std::fs::copy(&path, root.path().join("bin").join(program)).unwrap();
        let libraries = Command::new("ldd").arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&libraries.stdout).into_owned();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = root.path().join(library.trim_start_matches('/'));
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(library, target).unwrap();
        }
    }
    std::fs::write(
        root.path().join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n",
    )
    .unwrap();
    std::fs::write(root.path().join("etc/group"), "root:x:0:\nnode:x:1000:\n").unwrap();
    std::fs::write(root.path().join("etc/marker"), marker).unwrap();
    std::fs::write(root.path().join("dir/gone"), "x").unwrap();
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(root.path().join("tmp"), everyone).unwrap();
    tar(root.path())
}

/// A layer with these files.
pub(crate) fn layer(files: &[(&str, &str)]) -> Vec<u8> {
    let (root, _) = super::context(files);
    tar(root.path())
}

fn tar(root: &Path) -> Vec<u8> {
    Command::new("tar")
        .args(["--owner=0", "--group=0", "-C"])
        .arg(root)
        .args(["-cf", "-", "."])
        .output()
        .unwrap()
        .stdout
}
